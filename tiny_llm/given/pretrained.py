"""Load a model and its tokenizer by a checkpoint's name, with the fastest operations that work here."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import mlx.core as mx

from kernel_runtime.checkpoint import find_checkpoint, load_tokenizer, read_json
from kernel_runtime.native import is_invariant

from ..model.embedding import Embedding
from ..model.loader import load_model
from ..model.moe_loader import MODEL_TYPE, load_moe_model
from ..model.qwen3 import Qwen3Model
from ..ops.basics import one_by_one
from .accelerate import best_operations
from .best_grouped_matmul import best_grouped_matmul

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper


def load(path_or_repo: str | Path, dtype: mx.Dtype | None = None) -> tuple[Qwen3Model, "TokenizerWrapper"]:
    """Load a model and its tokenizer.

    Packed weights stay packed where the kernels work, and are expanded where they do not.

    Args:
        path_or_repo: a checkpoint folder, or the name of a hub repository.
        dtype: type to compute in; that of the checkpoint unless given.

    Raises:
        ValueError: the checkpoint `path_or_repo` is not there, not supported (as for `load_model`), or not
            complete; shows the `name` of the file.
    """
    path = find_checkpoint(path_or_repo)
    if read_json(path / "config.json").get("model_type") == MODEL_TYPE:
        operations = replace(best_operations(), grouped_matmul=best_grouped_matmul())
        model = load_moe_model(path, dtype, operations)
    else:
        model = load_model(path, dtype, best_operations())
    if is_invariant() and isinstance(getattr(model, "embedding", None), Embedding):
        model.logits = one_by_one(model.logits)  # type: ignore[method-assign, assignment]
    return model, load_tokenizer(path)
