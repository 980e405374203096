"""Prefill on one machine, decode on another: what moves, how long it takes, how fast the link must be."""

from .config import ModelConfig
from .traffic import Link


def handover_bytes(
    config: ModelConfig, num_tokens: int, num_found: int = 0, bits_per_number: float = 16
) -> float:
    """Bytes of keys and values that move when another machine goes on with a request.

    Args:
        config: of the model.
        num_tokens: S, the tokens of the prompt.
        num_found: leading tokens whose keys and values the other machine has in its cache.
        bits_per_number: of the numbers in the blocks; quantized ones include their scales.
    """
    raise NotImplementedError("week 4 day 4 task 5: handover_bytes is not written yet")


def handover_delay(config: ModelConfig, num_bytes: float, prefill_seconds: float, link: Link) -> float:
    """Seconds from the end of the prefill until the other machine has everything.

    Each layer is sent while the next ones are computed, as soon as it is ready and the link is free. All
    layers take equally long, both to compute and to send.

    Args:
        config: of the model.
        num_bytes: of all layers together.
        prefill_seconds: what computing all layers takes.
        link: between the machines. Its latency counts for each layer.
    """
    raise NotImplementedError("week 4 day 4 task 5: handover_delay is not written yet")


def least_bandwidth(num_bytes: float, prefill_seconds: float) -> float:
    """Bytes per second that a link needs to keep up with prefills that follow each other without a pause.

    With a slower one, prompts queue before the link, and the machine behind it waits however fast it is.
    """
    raise NotImplementedError("week 4 day 4 task 5: least_bandwidth is not written yet")
