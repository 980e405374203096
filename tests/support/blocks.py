"""Online softmax over blocks of keys, in parts that are merged, and by known mistakes with it."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.support.causes import Mistakes
from tests.support.oracles import Array

Keys = npt.NDArray[np.int_]
State = tuple[Array, Array, Array]
"""The maximum so far, the total and the weighted values."""
Layout = Callable[[int], Sequence[Sequence[Keys]]]
"""The parts of so many keys, each with its blocks."""


def in_runs(keys: Keys, size: int) -> list[Keys]:
    """Blocks of neighbours."""
    return [keys[start : start + size] for start in range(0, len(keys), size)]


LAYOUTS: tuple[Layout, ...] = (
    lambda S: [in_runs(part, 64) for part in in_runs(np.arange(S), 256)],  # C++
    lambda S: [in_runs(np.arange(S), 32)],  # prefill on a GPU
    lambda S: [in_runs(np.arange(S)[i::8], 1 if S <= 300 else S) for i in range(min(S, 8))],  # decode on it
)


def visible(maximum: Array) -> Array:
    """0 in place of the -inf of rows that saw no key, since -inf minus -inf is not a number."""
    return np.where(np.isneginf(maximum), 0.0, maximum)


def absorb(
    scores: Array,
    value: Array,
    blocks: Sequence[Keys],
    total_shrinks: float = 1,
    weighted_shrinks: float = 1,
    stores_maximum: bool = True,
    guards: bool = True,
) -> State:
    """The state after some blocks of keys; what was summed up shrinks to a power: 0 not at all."""
    maximum, total, weighted = np.full((*scores.shape[:-1], 1), -np.inf), np.zeros(1), np.zeros(1)
    for keys in blocks:
        new = np.maximum(maximum, scores[..., keys].max(axis=-1, keepdims=True))
        reference = visible(new) if guards else new
        weights, shrink = np.exp(scores[..., keys] - reference), np.exp(maximum - reference)
        if stores_maximum:
            shrink = np.where(np.isneginf(maximum), 1.0, shrink)  # of sums that are 0
        total = total * shrink**total_shrinks + weights.sum(axis=-1, keepdims=True)
        weighted = weighted * shrink**weighted_shrinks + weights @ value[..., keys, :]
        maximum = new if stores_maximum else maximum
    return maximum, total, weighted


def merge(
    states: Sequence[State],
    scales_totals: bool = True,
    scales_values: bool = True,
    stores_maximum: bool = True,
    scales_own: bool = True,
    swaps: bool = False,
) -> Array:
    """The values averaged over all parts, one after the other."""
    maximum, total, weighted = states[0]
    for other_maximum, other_total, other_weighted in states[1:]:
        new = np.maximum(maximum, other_maximum)
        own, other = np.exp(maximum - visible(new)), np.exp(other_maximum - visible(new))
        own = own if scales_own else np.ones_like(own)
        own, other = (other, own) if swaps else (own, other)
        total = own * total + other * other_total if scales_totals else total + other_total
        weighted = own * weighted + other * other_weighted if scales_values else weighted + other_weighted
        maximum = new if stores_maximum else maximum
    return weighted / total


def in_one_part(scores: Array, value: Array, layout: Layout, **mistake: Any) -> Array:
    """All blocks after each other, with a mistake of `absorb`."""
    blocks = [block for part in layout(scores.shape[-1]) for block in part]
    _, total, weighted = absorb(scores, value, blocks, **mistake)
    return weighted / total


def in_parts(
    scores: Array, value: Array, layout: Layout, merge: Callable[..., Array] = merge, **mistake: Any
) -> Array:
    """Each part from nothing, with a mistake of `absorb`."""
    parts = layout(scores.shape[-1])
    return merge([absorb(scores, value, blocks, **mistake) for blocks in parts])


def without_the_last(scores: Array, value: Array, layout: Layout) -> Array:
    """The last block of all is not there."""
    *parts, last = layout(scores.shape[-1])
    return in_parts(scores, value, lambda _: [*parts, last[:-1]] if last[:-1] else parts)


def with_padding(scores: Array, value: Array, layout: Layout) -> Array:
    """The last block is as long as a whole one, its other scores 0."""
    whole, last = layout(300)[0][0], layout(scores.shape[-1])[-1][-1]
    weights = np.exp(scores)
    return weights @ value / (weights.sum(axis=-1, keepdims=True) + len(whole) - len(last))


def with_stale_scores(scores: Array, value: Array, layout: Layout) -> Array:
    """Behind the last block's keys stand the weights of the block before it, if any, taken for scores."""
    *before, last = layout(scores.shape[-1])[-1]
    reached = scores[..., np.concatenate(before)].max(axis=-1, keepdims=True)
    stale = np.exp(scores[..., before[-1][len(last) :]] - visible(reached))
    maximum = visible(scores.max(axis=-1, keepdims=True))
    weights = np.exp(scores - maximum)
    totals = weights.sum(axis=-1, keepdims=True) + np.exp(stale - maximum).sum(axis=-1, keepdims=True)
    return weights @ value / totals


Kind = Callable[[Array, Array, Layout], Array]
KINDS: dict[str, Kind] = {
    "in which the sums so far do not shrink to a new maximum": partial(in_parts, total_shrinks=0),
    "in which the outputs so far do not shrink to a new maximum": partial(in_parts, weighted_shrinks=0),
    "in which nothing shrinks to a new maximum": partial(in_parts, total_shrinks=0, weighted_shrinks=0),
    "in which what there is shrinks by exp(new - old maximum): it is exp(old - new)": partial(
        in_parts, total_shrinks=-1, weighted_shrinks=-1
    ),
    "to the last block of keys alone, as when the new maximum is not stored": partial(
        in_one_part, stores_maximum=False
    ),
    "with -inf - -inf in a row whose keys are all hidden so far": partial(in_parts, guards=False),
    "whose parts are merged as they are: each has a maximum of its own": partial(
        in_parts, merge=partial(merge, scales_totals=False, scales_values=False)
    ),
    "whose parts are merged without scaling their totals": partial(
        in_parts, merge=partial(merge, scales_totals=False)
    ),
    "whose parts are merged without scaling their values": partial(
        in_parts, merge=partial(merge, scales_values=False)
    ),
    "whose parts are merged without storing the new maximum": partial(
        in_parts, merge=partial(merge, stores_maximum=False)
    ),
    "whose parts are merged without scaling the first of two, as when the new maximum is stored before the "
    "factors are computed": partial(in_parts, merge=partial(merge, scales_own=False)),
    "whose parts are merged with each scaled by the other's factor": partial(
        in_parts, merge=partial(merge, swaps=True)
    ),
    "to the first part of the keys alone": lambda scores, value, layout: in_parts(
        scores, value, lambda S: layout(S)[:1]
    ),
    "without the last block of keys": without_the_last,
    "that counts the rest of the last block as keys with a score of 0": with_padding,
    "that counts what the block before left behind the last keys: hide the places from `num_keys` on": (
        with_stale_scores
    ),
    "that is not divided by the sum of the weights": lambda scores, value, layout: (
        np.exp(scores - scores.max(axis=-1, keepdims=True)) @ value
    ),
}


def block_mistakes(
    query: Array, key: Array, value: Array, scale: float | None = None, mask: Array | float = 0.0
) -> Mistakes:
    """Of attention [B, H_q, L, D] by a kernel in blocks of keys, whatever its layout."""
    scores, values = scores_and_values(query, key, value, scale, mask)
    return {
        f"attention {name}": tuple(partial(kind, scores, values, layout) for layout in LAYOUTS)
        for name, kind in KINDS.items()
    }


def scores_and_values(
    query: Array, key: Array, value: Array, scale: float | None, mask: Array | float
) -> tuple[Array, Array]:
    """Masked scores [B, H_q, L, S], and the values of each query head."""
    group_size = query.shape[1] // key.shape[1]
    keys, values = (np.repeat(x, group_size, axis=1) for x in (key, value))
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    return np.einsum("...ld,...sd->...ls", query, keys) * factor + mask, values
