"""The ends of what an attention function takes, which hold for each that the course writes."""

from dataclasses import dataclass
from typing import Literal

import mlx.core as mx
import numpy as np
import pytest

from tests.support.check import check_close, normal
from tests.support.oracles import Array, causal_mask, exact, grouped_attention
from tests.support.precision import check_rounded_once
from tiny_llm.ops.attention import Attention

B, H_Q, H, S = 2, 4, 2, 11


def make_mask(*shape: int, seed: int = 7) -> mx.array:
    """Additive, a third of its entries -inf; the last key stays open to all."""
    finite = normal(*shape, seed=seed + 1)
    mask = mx.where(normal(*shape, seed=seed) > 0.4, -mx.inf, finite)
    mask[..., -1] = finite[..., -1]
    return mask


def every_mask_shape(B: int, H_q: int, L: int, S: int) -> pytest.MarkDecorator:
    """Call a test with each `shape` of a mask that broadcasts to [B, H_q, L, S]."""
    shapes = {
        "the same for all": (L, S),
        "the same for all, three axes": (1, L, S),
        "one per head": (H_q, L, S),
        "one per head, four axes": (1, H_q, L, S),
        "one per batch row": (B, 1, L, S),
        "one per row and head": (B, H_q, L, S),
        "the same for all queries": (B, 1, 1, S),
        "one per head, the same for all queries": (H_q, 1, S),
        "one per query": (H_q, L, 1),
        "one per key": (S,),
    }
    return pytest.mark.parametrize("shape", shapes.values(), ids=shapes.keys())


@dataclass(frozen=True)
class Boundary:
    """L queries with a scale, and a mask of a shape: random, with hidden keys; or the word; or none."""

    L: int
    scale: float | None = None
    mask: tuple[int, ...] | Literal["causal"] | None = None


BOUNDARIES = {
    "scale 0": Boundary(3, 0.0),
    "scale 0, causal": Boundary(3, 0.0, "causal"),
    "scale 0, one query": Boundary(1, 0.0),
    "scale 0, many queries": Boundary(S, 0.0, "causal"),
    "one query, a mask for all": Boundary(1, mask=(1, S)),
    "one query, a mask for each key": Boundary(1, mask=(S,)),
    "one query, a mask for each head": Boundary(1, mask=(H_Q, 1, S)),
    "one query, a mask for each row": Boundary(1, mask=(B, 1, 1, S)),
    "one query, a mask for each row and head": Boundary(1, mask=(B, H_Q, 1, S)),
    "no query": Boundary(0),
    "no query, causal": Boundary(0, mask="causal"),
    "no query, a mask for all": Boundary(0, mask=(1, S)),
    "one query, scale 0 and a mask": Boundary(1, 0.0, (B, 1, 1, S)),
}
at_every_boundary = pytest.mark.parametrize("boundary", BOUNDARIES.values(), ids=BOUNDARIES)


def check_boundary(attention: Attention, boundary: Boundary, D: int = 16) -> None:
    """Compare grouped attention [B, H_q, L, D] with the formula at one of its boundaries."""
    __tracebackhide__ = True
    L, scale = boundary.L, boundary.scale
    query, key, value = (normal(B, *size, D, seed=i) for i, size in enumerate(((H_Q, L), (H, S), (H, S))))
    mask: mx.array | Literal["causal"] | None = None
    added: Array | float = 0.0
    if isinstance(boundary.mask, tuple):
        mask = mx.where(normal(*boundary.mask, seed=3) < 0.5, 0.0, -mx.inf)
        mask[..., 4] = 0.0  # each query sees at least one key
        added = exact(mask)
    elif boundary.mask == "causal":
        mask, added = "causal", causal_mask(L, S)
    operands = [exact(x) for x in (query, key, value)]
    mistakes = {}
    if scale == 0:
        name = "attention with the scale 1 / sqrt(D): 0 is a scale as well, only None stands for the default"
        mistakes[name] = grouped_attention(*operands, None, added)
    if mask is not None:
        name = "attention without the mask: a single query needs it too, where it hides keys"
        mistakes[name] = grouped_attention(*operands, scale)
    actual = attention(query, key, value, scale=scale, mask=mask)
    words = "no mask" if mask is None else "causal" if isinstance(mask, str) else f"a mask {mask.shape}"
    what = f"attention of {L} {'query' if L == 1 else 'queries'}, scale {scale}, {words}"
    check_close(actual, grouped_attention(*operands, scale, np.asarray(added)), what, mistakes=mistakes)


def check_short_scores(attention: Attention, L: int) -> None:
    """Large scores that differ by little: rounded to the input's type they would be equal."""
    __tracebackhide__ = True
    query, key, value = (normal(1, *size, 80, seed=i) for i, size in enumerate(((2, L), (1, 83), (1, 83)), 1))
    for dtype in (mx.float16, mx.bfloat16):
        operands = [x.astype(dtype) for x in (30 * query, key[:, :, :1] + 0.1 * key, value)]
        what = f"attention of {dtype} to keys that are much alike, {L=}: query x scale and scores are float32"
        check_rounded_once(attention(*operands), grouped_attention(*map(exact, operands)), what)
