"""What ranks exchange in a step, and how long a step takes on several of them."""

from dataclasses import dataclass

from .config import ModelConfig
from .shards import EXCHANGES_OF_ENDS, EXCHANGES_PER_LAYER


@dataclass(frozen=True)
class Link:
    """What connects ranks.

    Args:
        latency: seconds of an exchange of almost nothing.
        bandwidth: bytes per second that a rank receives.
    """

    latency: float
    bandwidth: float


def received_bytes(
    config: ModelConfig, num_ranks: int, num_tokens: int, num_logits: int, bytes_per_number: int = 4
) -> float:
    """Bytes that a rank receives from the others in a step of a model without experts.

    Of a vector that is joined from N parts, a rank lacks all but its own. Per token and layer, these are the
    heads' outputs, the output of o_proj, the MLP's hidden layer and the output of down_proj. An embedding is
    added up instead; in a ring, that takes twice as much. Each sampled token needs V logits.

    Args:
        config: of the whole model.
        num_ranks: N; 1 receives nothing.
        num_tokens: T
        num_logits: number of tokens that are sampled after the step.
        bytes_per_number: size of the type that the model computes in.
    """
    heads, E, hidden = (
        config.num_attention_heads * config.head_dim,
        config.hidden_size,
        config.intermediate_size,
    )
    per_token = 2 * E + config.num_hidden_layers * (heads + E + hidden + E)
    numbers = num_tokens * per_token + num_logits * config.vocab_size
    return bytes_per_number * numbers * (num_ranks - 1) / num_ranks


def step_seconds(
    config: ModelConfig, seconds_alone: float, num_ranks: int, received: float, link: Link
) -> float:
    """Predicted seconds of a step on N equal machines, each with its part of the weights.

    The computing is shared evenly. No exchange begins before the one that it depends on has ended, and no
    rank computes meanwhile. `EXCHANGES_PER_LAYER` and `EXCHANGES_OF_ENDS` of `shards.py` count the exchanges.

    Args:
        config: of the whole model.
        seconds_alone: what the step takes on one of the machines.
        num_ranks: N; 1 exchanges nothing.
        received: as `received_bytes` returns it.
        link: what connects the machines.
    """
    if num_ranks == 1:
        return seconds_alone
    num_exchanges = EXCHANGES_PER_LAYER * config.num_hidden_layers + EXCHANGES_OF_ENDS
    return seconds_alone / num_ranks + num_exchanges * link.latency + received / link.bandwidth
