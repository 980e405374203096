"""What a checkpoint's config.json says of its model, checked; see `ModelConfig.from_dict`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..ops.positional_encoding import RopeScaling
from .optional import once_written

SUPPORTED_MODEL_TYPES = ("qwen3", "qwen2", "llama", "mistral")
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
        raise NotImplementedError("week 1 day 5 task 5: ModelConfig.from_dict is not written yet")


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
    raise NotImplementedError("week 1 day 5 task 7: check_supported is not written yet")


def rope_scaling(kind: str, rope: ConfigDict) -> RopeScaling:
    """The scaling of this kind that RoPE's settings describe: linear, llama3 or yarn.

    Its fields are under keys of the same names. For yarn, the betas default to 32 and 1, and `truncate` to
    True. Its amplitude is attention_factor. Without that, it is the default amplitude of mscale divided by
    that of mscale_all_dim; with neither of these, it is the default amplitude of the factor.

    Raises:
        ValueError: a `key` is missing, such as one of mscale and mscale_all_dim beside the other; or the
            kind, `rope_type`, is not supported.
    """
    raise NotImplementedError("week 1 day 5 task 7: rope_scaling is not written yet")
