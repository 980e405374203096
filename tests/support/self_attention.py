"""Self-attention of grouped heads in numpy, by the formula and by known mistakes with it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from tests.support.oracles import (
    Array,
    Mistakes,
    causal_mask,
    grouped_attention,
    rms_norm,
    rope_frequencies,
    rotate,
)


def split_by_head(x: Array, D: int) -> Array:
    """[B, L, H x D] -> [B, H, L, D]"""
    return x.reshape(*x.shape[:2], -1, D).swapaxes(1, 2)


def split_every_so_many(x: Array, D: int) -> Array:
    """[B, L, H x D] -> [B, H, L, D] with the last axis taken as (D, H)."""
    return x.reshape(*x.shape[:2], D, -1).transpose(0, 3, 1, 2)


@dataclass(frozen=True)
class SelfAttention:
    """Projected, normalized, rotated, attended, joined, projected.

    Attributes:
        x: [B, L, E]
        weights: wq, wk, wv and wo.
        D: head dimension.
        base: of the rotation.
        positions: [L] or [B, L]
        norms: weights of q_norm and k_norm, of one of them, or none.
        eps: of the norms.
        biases: by the name of their weight.
        mask: causal unless given.
    """

    x: Array
    weights: Mapping[str, Array]
    D: int
    base: float
    positions: Any
    norms: Mapping[str, Array] = field(default_factory=dict)
    eps: float = 0.0
    biases: Mapping[str, Array] = field(default_factory=dict)
    mask: Array | float | None = None
    # Those of query, key and value that are rotated and normalized, and in other ways.
    rotated: str = "qk"
    normed: str = "qk"
    is_rotated_by_head: bool = False
    is_rotated_first: bool = False
    split: Callable[[Array, int], Array] = split_by_head

    def head(self, name: str) -> Array:
        """Of q, k or v, as [B, heads, L, D]."""
        heads = self.split(self.x @ self.weights[f"w{name}"].T + self.biases.get(f"w{name}", 0.0), self.D)
        if self.is_rotated_first:
            return self._normalize(self._rotate(heads, name), name)
        return self._rotate(self._normalize(heads, name), name)

    def _normalize(self, heads: Array, name: str) -> Array:
        norm = "q_norm" if name == "q" else "k_norm"
        if norm not in self.norms or name not in self.normed:
            return heads
        return rms_norm(heads, self.norms[norm], self.eps)

    def _rotate(self, heads: Array, name: str) -> Array:
        if name not in self.rotated:
            return heads
        frequencies = rope_frequencies(self.D, self.base)
        if self.is_rotated_by_head:
            first = np.broadcast_to(np.asarray(self.positions), self.x.shape[:2])[:, :1]
            return rotate(heads, first + np.arange(heads.shape[1]), frequencies)
        return rotate(heads.swapaxes(1, 2), np.asarray(self.positions), frequencies).swapaxes(1, 2)

    def attended(self) -> Array:
        """[B, H_q, L, D]"""
        L = self.x.shape[1]
        mask = causal_mask(L, L) if self.mask is None else self.mask
        return grouped_attention(*map(self.head, "qkv"), mask=mask)

    def join(self, heads: Array) -> Array:
        """[B, H_q, L, D] -> [B, L, E]"""
        return self._project(heads.swapaxes(1, 2))

    def _project(self, heads: Array) -> Array:
        return heads.reshape(*self.x.shape[:2], -1) @ self.weights["wo"].T + self.biases.get("wo", 0.0)

    def output(self) -> Array:
        """[B, L, E]"""
        return self.join(self.attended())

    def mistakes(self, part: Callable[["SelfAttention"], Array] | None = None) -> Mistakes:
        """What known mistakes give: of the output, or of a part of it."""
        changes: dict[str, dict[str, Any]] = {
            "without the rotation": {"rotated": ""},
            "with the values rotated too": {"rotated": "qkv"},
            "with the queries alone rotated": {"rotated": "q"},
            "with the keys alone rotated": {"rotated": "k"},
            "with heads rotated after the transpose: the rotation takes [B, L, H, D]": {
                "is_rotated_by_head": True
            },
            "with heads of every H-th dimension: split the last axis as (H, D), not (D, H)": {
                "split": split_every_so_many
            },
            "from position 0, without the offset": {"positions": range(self.x.shape[1])},
            "without the biases": {"biases": {}},
            "without the mask": {"mask": 0.0},
        }
        if self.mask is not None:
            changes["under the causal mask, not the one given"] = {"mask": None}
        if len(self.norms) == 2:
            q_norm, k_norm = self.norms["q_norm"], self.norms["k_norm"]
            changes |= {
                "without the norms of the heads": {"norms": {}},
                "with the values normalized too": {"normed": "qkv"},
                "with the norms of query and key swapped": {"norms": {"q_norm": k_norm, "k_norm": q_norm}},
                "with the norm of the query for the keys too": {
                    "norms": {"q_norm": q_norm, "k_norm": q_norm}
                },
                "with heads rotated before they are normalized": {"is_rotated_first": True},
            }

        def wrong(fields: dict[str, Any]) -> Array:
            other = replace(self, **fields)
            return part(other) if part else other.output()

        return {
            **{f"self-attention {name}": partial(wrong, fields) for name, fields in changes.items()},
            "self-attention with the heads joined without swapping the axes back": lambda: self._project(
                self.head("q") if part else self.attended()
            ),
        }
