"""Split a checkpoint among ranks, by the outputs of every projection and the rows of the embedding.

The names of what is split, `SPLIT_LAYERS`, `DIVIDED_SIZES` and `JOINED_SIZES`, are in `shards.py`.
"""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx

from .shards import DIVIDED_SIZES, JOINED_SIZES, SPLIT_LAYERS


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
    part = dict(config)
    if part.get("head_dim") is None:
        part["head_dim"] = config["hidden_size"] // config["num_attention_heads"]
    for key in (*DIVIDED_SIZES, *JOINED_SIZES):
        size = config.get(key)
        if size is not None and size % num_ranks:
            raise ValueError(
                f"{num_ranks} ranks cannot share this model evenly: its {key} is {size}, so choose a number "
                "of ranks that divides it"
            )
        if size is not None and key in DIVIDED_SIZES:
            part[key] = size // num_ranks
    return part


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
    shards = dict[str, mx.array]()
    for name, tensor in tensors.items():
        if name.split(".")[-2] in SPLIT_LAYERS:
            parts = mx.split(tensor, num_ranks, axis=-min(2, tensor.ndim))
            shards[name] = mx.contiguous(parts[rank])
        else:
            shards[name] = tensor
    return shards
