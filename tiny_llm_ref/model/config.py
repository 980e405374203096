"""What a checkpoint's config.json says of its model, checked; see `ModelConfig.from_dict`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..ops.positional_encoding import LinearScaling, Llama3Scaling, RopeScaling, YarnScaling
from .config_check import check_config, shortened
from .optional import once_written

SUPPORTED_MODEL_TYPES = ("qwen3", "qwen2", "llama", "mistral")
REQUIRED = (
    "model_type",
    "hidden_size",
    "num_attention_heads",
    "num_hidden_layers",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)
ConfigDict = Mapping[str, Any]  # JSON, so its values may be anything


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and switches of a decoder. Qwen3, Qwen2.5, Llama and Mistral differ in the switches alone.

    `tie_word_embeddings` is None where the file does not say: then the checkpoint's tensors decide.
    """

    model_type: str
    hidden_size: int
    num_hidden_layers: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    rope_traditional: bool = False
    tie_word_embeddings: bool | None = None
    qk_norm: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False

    @staticmethod
    def from_dict(config: ConfigDict) -> "ModelConfig":
        """Read the contents of a config.json.

        Raises:
            ValueError: as for `check_supported` and `rope_scaling`.
        """
        check_supported(config)
        config = _given(config)
        model_type, hidden_size = config["model_type"], config["hidden_size"]
        num_heads = config["num_attention_heads"]
        attention_bias = bool(config.get("attention_bias", False))
        rope = {**_given(config.get("rope_scaling") or {}), **_given(config.get("rope_parameters") or {})}
        kind = rope.get("rope_type") or rope.get("type") or "default"
        return ModelConfig(
            model_type=model_type,
            hidden_size=hidden_size,
            num_hidden_layers=config["num_hidden_layers"],
            intermediate_size=config["intermediate_size"],
            num_attention_heads=num_heads,
            num_key_value_heads=config.get("num_key_value_heads") or num_heads,
            head_dim=config.get("head_dim") or hidden_size // num_heads,
            vocab_size=config["vocab_size"],
            max_position_embeddings=config["max_position_embeddings"],
            rms_norm_eps=config.get("rms_norm_eps", 1e-6),
            rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
            rope_scaling=None if kind == "default" else rope_scaling(kind, rope),
            rope_traditional=bool(config.get("rope_traditional", False)),
            tie_word_embeddings=config.get("tie_word_embeddings"),
            qk_norm=model_type == "qwen3",
            qkv_bias=attention_bias or model_type == "qwen2",
            output_bias=attention_bias and model_type != "qwen2",
            mlp_bias=bool(config.get("mlp_bias", False)),
        )


def _required(config: ConfigDict, key: str, where: str = "config.json") -> Any:
    if config.get(key) is None:
        raise ValueError(f"{where} does not say {key!r}, which this model needs")
    return config[key]


def _given(config: ConfigDict) -> ConfigDict:
    """The config without its null values, which count as missing."""
    return {key: value for key, value in config.items() if value is not None}


@once_written
def check_supported(config: ConfigDict) -> None:
    """Refuse a checkpoint whose config.json asks for something that this model doesn't compute.

    A sliding window is asked for by an entry of layer_types other than full_attention, or by a sliding_window
    that is on: in a mistral always, in others if use_sliding_window says so. Accept one that changes nothing:
    it has no size, is as long as the context, or starts above all layers (max_window_layers, 0 if missing).

    Raises:
        ValueError: the `model_type` is none of SUPPORTED_MODEL_TYPES, which is checked first; a `key` is
            missing; its value is of the wrong kind, or the `mode` of a quantization is not affine
            (`check_config`); there is no head_dim, and `num_attention_heads` does not divide `hidden_size`;
            the `hidden_act` is not supported; a `key` asks for a partial rotation, for RoPE settings per
            kind of layer or for a sliding window; or there is a quantization_config, whose `quant_method` is
            shown, without a quantization.
    """
    config = _given(config)
    model_type = _required(config, "model_type")
    if model_type not in SUPPORTED_MODEL_TYPES:
        raise ValueError(
            f"model_type {shortened(model_type)} is not supported by ModelConfig, which knows "
            f"{', '.join(SUPPORTED_MODEL_TYPES)}: use `load`, which may know it"
        )
    check_config(config)
    for key in REQUIRED:
        _required(config, key)
    hidden_size, num_heads = config["hidden_size"], config["num_attention_heads"]
    if not config.get("head_dim") and hidden_size % num_heads != 0:
        raise ValueError(f"config.json gives no head_dim and {num_heads} heads do not divide {hidden_size}")
    if "quantization_config" in config and "quantization" not in config:
        method = config["quantization_config"].get("quant_method", "an unknown method")
        raise ValueError(
            f"the weights are quantized by {shortened(method)}, which is not supported: use the original "
            "model, or a version that mlx-lm quantized, such as those of mlx-community"
        )
    if config.get("hidden_act", "silu") != "silu":
        raise ValueError(f"hidden_act {config['hidden_act']!r} is not supported: the MLP is SwiGLU")
    rope_parameters = _given(config.get("rope_parameters") or {})
    if any(isinstance(value, dict) for value in rope_parameters.values()):
        raise ValueError("rope_parameters that differ by layer are not supported: all layers share one RoPE")
    if any(part.get("partial_rotary_factor", 1.0) != 1.0 for part in (config, rope_parameters)):
        raise ValueError("partial_rotary_factor is not supported: RoPE rotates whole heads")
    if any(layer != "full_attention" for layer in config.get("layer_types") or []) or _slides(config):
        raise ValueError(
            "a sliding window, by layer_types, use_sliding_window or sliding_window, is not supported: "
            "every layer attends to the whole context"
        )


def _slides(config: ConfigDict) -> bool:
    """Whether a window shorter than the context touches any layer. Only Qwen has a switch for it."""
    if config.get("sliding_window", config["max_position_embeddings"]) >= config["max_position_embeddings"]:
        return False
    is_switched_on = bool(config.get("use_sliding_window"))
    from_layer = config.get("max_window_layers", 0)
    return config["model_type"] == "mistral" or (is_switched_on and from_layer < config["num_hidden_layers"])


def rope_scaling(kind: str, rope: ConfigDict) -> RopeScaling:
    """The scaling of this kind that RoPE's settings describe: linear, llama3 or yarn.

    Its fields are under keys of the same names. For yarn, the betas default to 32 and 1, and `truncate` to
    True. Its amplitude is attention_factor. Without that, it is the default amplitude of mscale divided by
    that of mscale_all_dim; with neither of these, it is the default amplitude of the factor.

    Raises:
        ValueError: a `key` is missing, such as one of mscale and mscale_all_dim beside the other; or the
            kind, `rope_type`, is not supported.
    """
    where = f"the {kind} RoPE scaling of config.json"
    if kind == "linear":
        return LinearScaling(_required(rope, "factor", where))
    if kind == "llama3":
        return Llama3Scaling(
            factor=_required(rope, "factor", where),
            low_freq_factor=_required(rope, "low_freq_factor", where),
            high_freq_factor=_required(rope, "high_freq_factor", where),
            original_max_position_embeddings=_required(rope, "original_max_position_embeddings", where),
        )
    if kind == "yarn":
        return YarnScaling(
            factor=_required(rope, "factor", where),
            original_max_position_embeddings=_required(rope, "original_max_position_embeddings", where),
            amplitude=_yarn_amplitude(rope),
            beta_fast=rope.get("beta_fast") or 32.0,
            beta_slow=rope.get("beta_slow") or 1.0,
            truncate=rope.get("truncate", True),
        )
    raise ValueError(f"RoPE scaling {kind!r} is not supported: only linear, llama3 and yarn are")


def _yarn_amplitude(rope: ConfigDict) -> float:
    """`attention_factor` where given, else the ratio of the two mscales, else the paper's formula."""
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    factor, mscale, mscale_all_dim = rope["factor"], rope.get("mscale"), rope.get("mscale_all_dim")
    if not mscale and not mscale_all_dim:
        return YarnScaling.default_amplitude(factor)
    if not mscale or not mscale_all_dim:
        raise ValueError(
            "the yarn RoPE scaling of config.json gives one of mscale and mscale_all_dim: give both"
        )
    return YarnScaling.default_amplitude(factor, mscale) / YarnScaling.default_amplitude(
        factor, mscale_all_dim
    )
