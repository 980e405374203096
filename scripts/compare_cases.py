"""The inputs that `pdm run compare` runs both packages on: how cases are written, and what they share.

The cases themselves are in `compare_cases_*.py`: each is a function of a package that computes something with
one symbol of course.toml and returns a tree of arrays, numbers and texts. Its docstring is what the learner
reads. A new symbol needs at least one:

    @case("basics.softmax")
    def softmax_of_rows(tiny: ModuleType) -> Tree:
        \"\"\"Along the last axis.\"\"\"
        return tiny.softmax(normal(67, 4096), axis=-1)

All of a case is timed: it takes milliseconds, and what it needs beside the symbol is made once. `tiny` is the
learner's package with its holes filled, or the reference, so a case may use the whole of it.
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from scripts.compare_trees import Tree

if TYPE_CHECKING:
    from tiny_llm_ref import ModelConfig, Qwen3Model, Qwen3MultiHeadAttention, Qwen3TransformerBlock, RoPE

Run = Callable[[ModuleType], Tree]
EOS = 0
CONFIG: dict[str, Any] = {  # mutually different sizes, so that no swapped axis fits
    "model_type": "qwen3",
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "intermediate_size": 256,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 257,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True)
class Case:
    """One row of the comparison: a name below its symbol, and what is computed with a package."""

    symbol: str
    name: str
    run: Run


CASES: dict[str, list[Case]] = {}


def case(symbol: str) -> Callable[[Run], Run]:
    """Add a function to the cases of a symbol, in the order in which they are written."""

    def add(run: Run) -> Run:
        CASES.setdefault(symbol, []).append(Case(symbol, (run.__doc__ or "").rstrip("."), run))
        return run

    return add


def cases_of(symbol: str) -> list[Case]:
    """The cases of a symbol."""
    for file in sorted(Path(__file__).parent.glob("compare_cases_*.py")):
        importlib.import_module(f"scripts.{file.stem}")
    return CASES.get(symbol, [])


def module(tiny: ModuleType, name: str) -> ModuleType:
    """A module of a package; as an attribute it may be hidden by a function of the same name."""
    return importlib.import_module(f"{tiny.__name__}.{name}")


def normal(*shape: int, seed: int = 0, dtype: mx.Dtype = mx.float32) -> mx.array:
    """Normal-distributed numbers, the same in every run, in an array that the caller may change."""
    # The cached array is never handed out: `x += 1` in a learner's function would change it for all.
    return _normal(shape, seed, dtype).reshape(shape)


@cache
def _normal(shape: tuple[int, ...], seed: int, dtype: mx.Dtype) -> mx.array:
    array = mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)
    mx.eval(array)
    return array


def token_ids(length: int, seed: int = 0) -> list[int]:
    """A prompt for the small model, without its end-of-text id."""
    return mx.random.randint(1, 256, (length,), key=mx.random.key(seed)).tolist()  # type: ignore[return-value]


def triangle(L: int, S: int) -> mx.array:
    """An additive causal mask [L, S]."""
    return mx.triu(mx.full((L, S), -mx.inf), k=S - L + 1)


class ByteTokenizer:
    """One token a byte of UTF-8, so that a character may take several; id 0 ends the text."""

    eos_token_ids = {EOS}
    bos_token: str | None = "<"

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The bytes, after those of the beginning-of-text token where that is asked for."""
        return list((("<" if add_special_tokens else "") + text).encode())

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text; what is no whole character becomes a replacement character."""
        return bytes(token % 256 for token in token_ids).decode(errors="replace")


def weights() -> dict[str, mx.array]:
    """The small model's tensors by their names in a checkpoint, in arrays that the caller may change."""
    return {name: tensor.reshape(tensor.shape) for name, tensor in _weights().items()}


@cache
def _weights() -> dict[str, mx.array]:
    E, hidden, D = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["head_dim"]
    q_size, kv_size = CONFIG["num_attention_heads"] * D, CONFIG["num_key_value_heads"] * D
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (CONFIG["vocab_size"], E), "model.norm": (E,)}
    for i in range(CONFIG["num_hidden_layers"]):
        own = {
            "self_attn.q_proj": (q_size, E),
            "self_attn.k_proj": (kv_size, E),
            "self_attn.v_proj": (kv_size, E),
            "self_attn.o_proj": (E, q_size),
            "self_attn.q_norm": (D,),
            "self_attn.k_norm": (D,),
            "mlp.gate_proj": (hidden, E),
            "mlp.up_proj": (hidden, E),
            "mlp.down_proj": (E, hidden),
            "input_layernorm": (E,),
            "post_attention_layernorm": (E,),
        }
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in own.items()}
    tensors = {
        f"{name}.weight": 0.1 * normal(*shape, seed=seed) + (len(shape) == 1)
        for seed, (name, shape) in enumerate(shapes.items())
    }
    mx.eval(tensors)
    return tensors


@cache
def small_config(tiny: ModuleType) -> "ModelConfig":
    """The small model's configuration, made without `from_dict`."""
    known = {key: value for key, value in CONFIG.items() if key in tiny.ModelConfig.__dataclass_fields__}
    config: ModelConfig = tiny.ModelConfig(**known, qk_norm=True)
    return config


@cache
def small_rope(tiny: ModuleType) -> "RoPE":
    """The rotation that its layers share."""
    rope: RoPE = tiny.RoPE(
        CONFIG["head_dim"], CONFIG["max_position_embeddings"], base=CONFIG["rope_theta"], traditional=False
    )
    return rope


@cache
def small_attention(tiny: ModuleType, layer: int) -> "Qwen3MultiHeadAttention":
    """The self-attention of one layer of the small model."""
    held, own = weights(), f"model.layers.{layer}.self_attn"
    norms = [
        tiny.RMSNorm(CONFIG["head_dim"], held[f"{own}.{name}_norm.weight"], CONFIG["rms_norm_eps"])
        for name in "qk"
    ]
    projections = [held[f"{own}.{name}_proj.weight"] for name in "qkvo"]
    attention: Qwen3MultiHeadAttention = tiny.Qwen3MultiHeadAttention(
        small_config(tiny), *projections, small_rope(tiny), *norms
    )
    return attention


@cache
def small_block(tiny: ModuleType, layer: int) -> "Qwen3TransformerBlock":
    """One layer of the small model."""
    held, own, E = weights(), f"model.layers.{layer}", CONFIG["hidden_size"]
    projections = [held[f"{own}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down")]
    mlp = tiny.Qwen3MLP(E, CONFIG["intermediate_size"], *projections)
    norms = [
        tiny.RMSNorm(E, held[f"{own}.{name}_layernorm.weight"], CONFIG["rms_norm_eps"])
        for name in ("input", "post_attention")
    ]
    block: Qwen3TransformerBlock = tiny.Qwen3TransformerBlock(small_attention(tiny, layer), mlp, *norms)
    return block


@cache
def small_model(tiny: ModuleType) -> "Qwen3Model":
    """A Qwen3 of two layers with random weights, put together without the loader."""
    held, E = weights(), CONFIG["hidden_size"]
    model: Qwen3Model = tiny.Qwen3Model(
        small_config(tiny),
        tiny.Embedding(CONFIG["vocab_size"], E, held["model.embed_tokens.weight"]),
        [small_block(tiny, layer) for layer in range(CONFIG["num_hidden_layers"])],
        tiny.RMSNorm(E, held["model.norm.weight"], CONFIG["rms_norm_eps"]),
    )
    return model
