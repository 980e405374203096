"""Counts calls of parts that a test hands in: work done twice, or for nobody, gives the right result too."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from tests.support.check import check_equal
from tests.support.fakes import FakeModel, FakeTokenizer, continuation


class Counted:
    """A function, which counts its calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.num_calls = function, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.num_calls += 1
        return self.function(*args, **kwargs)


def count_calls(owner: object, name: str) -> Counted:
    """Put a counter in place of a method of this one object."""
    counted = Counted(getattr(owner, name))
    setattr(owner, name, counted)
    return counted


def check_calls(parts: dict[str, Counted], expected: int, what: str) -> None:
    """Fail unless each of the parts was called so often since the last check."""
    __tracebackhide__ = True
    counts = {name: part.num_calls for name, part in parts.items()}
    for part in parts.values():
        part.num_calls = 0
    check_equal(counts, dict.fromkeys(parts, expected), f"calls of each part {what}")


def check_decodes_once(generate: Callable[..., str]) -> None:
    """Fail unless a text that nobody listens to is decoded at its end, and only then."""
    __tracebackhide__ = True
    tokenizer = FakeTokenizer()
    decode = count_calls(tokenizer, "decode")
    text = generate(FakeModel(), tokenizer, "TINY", lambda logprobs: mx.argmax(logprobs, axis=-1), 5)
    check_calls({"decode": decode}, 1, "for five tokens without on_text")
    check_equal(text, FakeTokenizer().decode(continuation(tokenizer.encode("TINY"), 5)), "text")
