"""Split a checkpoint among ranks, by the outputs of every projection and the rows of the embedding.

The names of what is split, `SPLIT_LAYERS`, `DIVIDED_SIZES` and `JOINED_SIZES`, are in `shards.py`.
"""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx


def shard_config(config: Mapping[str, Any], num_ranks: int) -> dict[str, Any]:
    """The config.json of one rank's part of a model.

    Each rank computes its part of the heads and of the MLP: `DIVIDED_SIZES` are divided by the number of
    ranks. The parts of `JOINED_SIZES` are joined again before the next layer, so these sizes stay. A size
    that is missing or null stays so, except for head_dim, which then is hidden_size / num_attention_heads of
    the whole model.

    Args:
        config: contents of the checkpoint's config.json.
        num_ranks: N, at least 1.

    Returns:
        a new dict.

    Raises:
        ValueError: the `size` that a `key` of either kind has is not a multiple of `num_ranks`.
    """
    raise NotImplementedError("week 4 day 3 task 1: shard_config is not written yet")


def shard_tensors(tensors: Mapping[str, mx.array], rank: int, num_ranks: int) -> dict[str, mx.array]:
    """The tensors of one rank, under their names.

    A row of a weight belongs to one output, and the same row of its scales and biases to the same output. So
    every tensor of a layer in `SPLIT_LAYERS` is split by rows, and its plain bias by entries. Rank 0 gets the
    first of N equal parts. All other tensors are for every rank.

    Args:
        tensors: arrays by their names in the checkpoint, such as model.layers.0.mlp.up_proj.scales. Weights
            are [out, in], or [X, out, in] for X experts, each of which is split.
        rank: from 0 to N - 1.
        num_ranks: N, which `shard_config` accepts.

    Returns:
        a new dict. Its arrays don't keep whole tensors in memory.
    """
    raise NotImplementedError("week 4 day 3 task 1: shard_tensors is not written yet")
