"""The part of each rank in serving: rank 0 has the engine, the others follow."""

from pathlib import Path

import mlx.core as mx

from ....given.pretrained import load_part
from ....model.given.ranks import Ranks
from ...scheduler import SchedulerConfig
from ..follower import Follower
from ..leading_model import LeadingModel
from ..message import Kind, send, to_message
from ..watchdog import Watchdog
from .guarded_engine import LOST_PEER

LOST_EXIT_CODE = 75
"""Of a rank that ends only because another one has ended."""


def load_leading(
    path: Path, ranks: Ranks, dtype: mx.Dtype | None, config: SchedulerConfig, max_seq_len: int | None
) -> LeadingModel:
    """Load rank 0's part of a checkpoint, as the model of an engine with this config."""
    part = load_part(path, ranks, dtype)
    longest = max_seq_len or part.config.max_position_embeddings
    return LeadingModel(part, ranks, Watchdog(config, longest))


def follow(path: Path, ranks: Ranks, dtype: mx.Dtype | None) -> int:
    """Load this rank's part of a checkpoint and compute what rank 0 sends. Return the exit code."""
    follower = Follower(load_part(path, ranks, dtype), ranks)
    try:
        follower.run()
    except RuntimeError as error:
        if LOST_PEER not in str(error):
            raise
        return LOST_EXIT_CODE
    return 0


def stop_others(ranks: Ranks) -> None:
    """Let the other ranks end, when rank 0 has no engine any more."""
    mx.eval(send(to_message([mx.array([Kind.STOP])]), ranks))
