"""Checks of shapes and types, before a kernel trusts them."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any, TypeVar, cast

import mlx.core as mx

Function = TypeVar("Function", bound=Callable[..., Any])
Shape = tuple[int, ...]
Sizes = dict[str, int | Shape]
PATTERN = re.compile(r"\[(.*)\](?: (\w+))?")
FREE = "..."


def shaped(**patterns: str) -> Callable[[Function], Function]:
    """Let a function check the shapes of its first arguments, and raise ValueError before it starts.

    A kernel reads wherever shapes lead it. A pattern has a word for each size. A word must mean the same size
    wherever it occurs, and so must `...`, which stands for any number of axes:

        @shaped(x="[..., 2 * K]", rows="[N] integer", weights="[N, K] uint32")

    A type may follow: one of MLX, "integer" for any of them, or "same" for arrays of one type. Whatever has a
    `shape` can be checked, such as weights. No array is evaluated, so values are not checked.

    Args:
        patterns: by the names of the function's first parameters, in their order.
    """
    expected = [Pattern.parse(name, text) for name, text in patterns.items()]
    typed = [pattern for pattern in expected if pattern.dtype]

    @lru_cache(maxsize=256)  # the layers of a model call with the same shapes
    def check(shapes: tuple[Shape, ...], dtypes: tuple[mx.Dtype, ...]) -> None:
        sizes: Sizes = {}
        for pattern, shape in zip(expected, shapes, strict=True):
            pattern.check_shape(shape, sizes)
        types: dict[str, mx.Dtype] = {}
        for pattern, dtype in zip(typed, dtypes, strict=True):
            pattern.check_type(dtype, types)

    # The code is generated, as dataclasses do it: a step of a model has dozens of these calls, and with *args
    # instead of names each would take three times as long.
    names = ", ".join(patterns)
    shapes = "".join(f"{name}.shape, " for name in patterns)
    types = "".join(f"{pattern.name}.dtype, " for pattern in typed)
    source = (
        f"def checking({names}, *args, **named):\n"
        f"    check(({shapes}), ({types}))\n"
        f"    return function({names}, *args, **named)\n"
    )

    def decorate(function: Function) -> Function:
        space: dict[str, Any] = {"check": check, "function": function}
        exec(source, space)
        return cast(Function, wraps(function)(space["checking"]))

    return decorate


@dataclass(frozen=True)
class Pattern:
    """What one argument must look like.

    Args:
        name: of the argument.
        text: the pattern as it was written.
        words: one per axis; `...` for any number of them.
        dtype: its type, "integer" or "same"; "" for any.
    """

    name: str
    text: str
    words: tuple[str, ...]
    dtype: str

    @classmethod
    def parse(cls, name: str, text: str) -> "Pattern":
        """Read a pattern such as "[..., 2 * K] uint32"."""
        found = PATTERN.fullmatch(text)
        assert found is not None, text
        return cls(name, text, tuple(found[1].split(", ")), found[2] or "")

    def check_shape(self, shape: Shape, sizes: Sizes) -> None:
        """Raise ValueError unless the shape fits, and note the sizes that are new."""
        known = {word: sizes[word] for word in map(letter_of, self.words) if word in sizes}
        parts: list[int | Shape] = [*shape]
        if FREE in self.words and len(shape) >= len(self.words) - 1:
            start = self.words.index(FREE)
            end = start + len(shape) - len(self.words) + 1
            parts[start:end] = [shape[start:end]]
        if len(parts) != len(self.words) or not all(map(has_size, self.words, parts, [sizes] * len(parts))):
            where = ", ".join(f"{word} = {size}" for word, size in known.items())
            raise ValueError(f"{self.name} must be {self.text}{where and f' with {where}'}, got {shape}")

    def check_type(self, dtype: mx.Dtype, types: dict[str, mx.Dtype]) -> None:
        """Raise ValueError unless the type fits, and note it if it is the first that "same" stands for."""
        right: object = self.dtype
        if self.dtype == "integer":
            fits = mx.issubdtype(dtype, mx.integer)
        else:
            right = types.setdefault("same", dtype) if self.dtype == "same" else getattr(mx, self.dtype)
            fits = dtype == right
        if not fits:
            raise ValueError(f"{self.name} must be of type {right}, got {dtype}")


def letter_of(word: str) -> str:
    """The size that an axis is named after: K for "K" and for "2 * K"."""
    return word.rpartition(" * ")[2]


def has_size(word: str, part: int | Shape, sizes: Sizes) -> bool:
    """Whether an axis, or the axes of `...`, have the size known by that word; a new word gets this one."""
    factor = int(word.rpartition(" * ")[0] or 1)
    if factor == 1 or isinstance(part, tuple):
        return sizes.setdefault(word, part) == part
    return part % factor == 0 and sizes.setdefault(letter_of(word), part // factor) == part // factor


def heads_per_kv_head(H_q: int, H: int) -> int:
    """Number of query heads that share each KV head.

    Args:
        H_q: number of query heads.
        H: number of KV heads.

    Raises:
        ValueError: H_q is not a multiple of H.
    """
    if H == 0 or H_q % H != 0:
        raise ValueError(f"{H_q} query heads cannot share {H} key heads evenly: H_q must be a multiple of H")
    return H_q // H
