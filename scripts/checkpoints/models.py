"""Loading a model by the name a command was given."""

import os
from typing import TYPE_CHECKING

import mlx.core as mx

from scripts.checkpoints.files import resolve_checkpoint

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from tiny_llm import Qwen3Model


def load_by_name(name: str) -> tuple["Qwen3Model", "TokenizerWrapper"]:
    """Model and tokenizer of a folder, a shipped model or one that `pdm run get-model` fetched.

    On a CPU the model computes in float32: its matrix products have no fast path for shorter types.

    Args:
        name: as for `resolve_checkpoint`.

    Raises:
        ValueError: there is no such checkpoint, or it cannot be loaded.
    """
    from tiny_llm import load

    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it would miss PyTorch aloud
    return load(resolve_checkpoint(name), fastest_dtype())


def fastest_dtype() -> mx.Dtype | None:
    """The type to compute in on the default device; None stands for the checkpoint's."""
    return mx.float32 if mx.default_device() == mx.Device(mx.cpu) else None


def as_chat(tokenizer: "TokenizerWrapper", message: str) -> list[int]:
    """Token ids of one user message in the checkpoint's chat template, ready for the answer.

    Raises:
        ValueError: the checkpoint has no chat template.
    """
    if not tokenizer.has_chat_template:
        raise ValueError("this checkpoint has no chat template: leave out --chat")
    messages = [{"role": "user", "content": message}]
    return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True))
