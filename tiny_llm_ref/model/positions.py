"""The longest sequence that a model has positions for."""

from kernel_runtime.limits import check_integer

from .qwen3 import Qwen3Model


def check_max_seq_len(max_seq_len: int, model: Qwen3Model) -> None:
    """Refuse a limit that a request could reach, but the model could not.

    Raises:
        ValueError: `max_seq_len` is no integer, below 1 or above the `max_position_embeddings` of the model.
    """
    check_integer("max_seq_len", max_seq_len, 1)
    most = model.config.max_position_embeddings
    if max_seq_len > most:
        raise ValueError(
            f"max_seq_len must be at most {most}, the model's max_position_embeddings, got {max_seq_len}"
        )
