"""Checks the values of a config.json before anything is built from them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..ops.packing import BITS
from ..ops.quantize import GROUP_SIZES

LARGEST_SIZE = 2**24  # of a dimension, and of RoPE's tables
LARGEST_NUMBER = 1e12


@dataclass(frozen=True)
class Kind:
    """One kind of value, and its name in error messages."""

    name: str
    holds: Callable[[Any], bool]


def is_number(value: Any) -> bool:
    """Whether the value is a finite number of a usable size; True and False are not numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST_NUMBER


def is_size(value: Any) -> bool:
    """Whether the value is an integer from 1 to the largest size of an array's axis."""
    return isinstance(value, int) and is_number(value) and 1 <= value <= LARGEST_SIZE


SIZE = Kind(f"an integer from 1 to {LARGEST_SIZE}", is_size)
COUNT = Kind(
    "an integer of at least 0", lambda value: isinstance(value, int) and is_number(value) and value >= 0
)
NUMBER = Kind("a number of at least 0", lambda value: is_number(value) and value >= 0)
POSITIVE = Kind("a number above 0", lambda value: is_number(value) and value > 0)
BASE = Kind("a number above 1", lambda value: is_number(value) and value > 1)
SWITCH = Kind("true or false", lambda value: isinstance(value, bool))
TEXT = Kind("a string", lambda value: isinstance(value, str))
OBJECT = Kind("an object", lambda value: isinstance(value, dict))
TEXTS = Kind(
    "a list of strings", lambda value: isinstance(value, list) and all(isinstance(x, str) for x in value)
)
COUNTS = Kind(
    "a list of integers of at least 0",
    lambda value: isinstance(value, list) and all(COUNT.holds(x) for x in value),
)
CODE_BITS = Kind(f"one of {', '.join(map(str, BITS))}", lambda value: COUNT.holds(value) and value in BITS)
GROUP_SIZE = Kind(
    f"one of {', '.join(map(str, GROUP_SIZES))}", lambda value: COUNT.holds(value) and value in GROUP_SIZES
)

MODEL: dict[str, Kind] = {
    "model_type": TEXT,
    "hidden_act": TEXT,
    "hidden_size": SIZE,
    "num_hidden_layers": SIZE,
    "intermediate_size": SIZE,
    "num_attention_heads": SIZE,
    "num_key_value_heads": SIZE,
    "head_dim": SIZE,
    "vocab_size": SIZE,
    "max_position_embeddings": SIZE,
    "rms_norm_eps": POSITIVE,
    "rope_theta": BASE,
    "rope_traditional": SWITCH,
    "rope_scaling": OBJECT,
    "rope_parameters": OBJECT,
    "partial_rotary_factor": NUMBER,
    "tie_word_embeddings": SWITCH,
    "attention_bias": SWITCH,
    "mlp_bias": SWITCH,
    "layer_types": TEXTS,
    "use_sliding_window": SWITCH,
    "sliding_window": COUNT,
    "max_window_layers": COUNT,
    "quantization": OBJECT,
    "quantization_config": OBJECT,
}
ROPE: dict[str, Kind] = {
    "rope_theta": BASE,
    "rope_type": TEXT,
    "type": TEXT,
    "factor": POSITIVE,
    "low_freq_factor": POSITIVE,
    "high_freq_factor": POSITIVE,
    "original_max_position_embeddings": SIZE,
    "attention_factor": NUMBER,
    "mscale": NUMBER,
    "mscale_all_dim": NUMBER,
    "beta_fast": NUMBER,
    "beta_slow": NUMBER,
    "truncate": SWITCH,
    "partial_rotary_factor": NUMBER,
}
QUANTIZATION: dict[str, Kind] = {"bits": CODE_BITS, "group_size": GROUP_SIZE}  # in mode affine


def check_config(config: Mapping[str, Any]) -> None:
    """Raise ValueError for any value of a config.json that is not of its kind. Null counts as missing.

    Of the modes of a quantization, only affine is of its kind. The kinds of the other settings depend on it.

    This does not check whether anything is missing, or whether the model is supported.
    """
    check_kinds(config, MODEL, "")
    for name in ("rope_scaling", "rope_parameters"):
        check_kinds(config.get(name) or {}, ROPE, f"{name}.")
    heads, key_heads = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if heads and key_heads and heads % key_heads != 0:
        raise ValueError(
            f"num_key_value_heads of config.json must divide num_attention_heads {heads}, got {key_heads}"
        )
    quantization = config.get("quantization") or {}
    own = {f"quantization.{layer}": each for layer, each in quantization.items() if isinstance(each, dict)}
    for name, settings in {"quantization": quantization, **own}.items():
        mode = settings.get("mode")
        if mode not in (None, "affine"):
            raise ValueError(
                f"{name} of config.json is in mode {shortened(mode)}, but only 'affine' is supported: "
                "use a checkpoint quantized in mode 'affine'"
            )
        check_kinds(settings, QUANTIZATION, f"{name}.")


def check_kinds(values: Mapping[str, Any], kinds: Mapping[str, Kind], prefix: str) -> None:
    """Raise ValueError, showing the name, for any value that is not of its kind."""
    for name, kind in kinds.items():
        value = values.get(name)
        if value is not None and not kind.holds(value):
            raise ValueError(f"{prefix}{name} of config.json must be {kind.name}, got {shortened(value)}")


def shortened(value: Any, longest: int = 60) -> str:
    """Format a value for an error message: a list or an object is shown as its type only."""
    text = repr(value) if isinstance(value, str | int | float) else f"a {type(value).__name__}"
    return text if len(text) <= longest else f"{text[:longest]}..."
