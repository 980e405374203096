"""What the sentence of an error shows, and what the docstring of who raised it says that it shows.

A learner knows which values a sentence must show: those whose names stand in backticks where the docstring
speaks of the ValueError. Tests look for these values, in any usual form, and for no words.
"""

import inspect
import math
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from numbers import Real
from types import FrameType, FunctionType, TracebackType
from typing import Any

from tests.support.state import is_of_package

NUMBER = re.compile(r"(?<![\w.])-?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|nan|inf)", re.IGNORECASE)
TIMES = re.compile("(?<=\\d) ?[x\u00d7] ?(?=\\d)")
THOUSANDS = re.compile(r"(?<=\d)[,_](?=\d{3}(?!\d))")
REFERENCE = re.compile(r"ValueError are those of `(\w+)`")
BETWEEN = re.compile(r"[\s,()\[\]{}]*")


def shows(sentence: str, value: Any) -> bool:
    """Whether a sentence shows a value: (7, 96), [7, 96] and 7 x 96 are one, as are 1000, 1,000 and 1e3."""
    sentence = TIMES.sub(", ", sentence.replace("\u2212", "-")).replace('"', "'")
    items = list(value) if isinstance(value, tuple | list) else [value]
    if items and all(isinstance(item, Real) and not isinstance(item, bool) for item in items):
        return any(shows_numbers(each, items) for each in (sentence, THOUSANDS.sub("", sentence)))
    if isinstance(value, tuple | list):
        return any(repr(kind(value)).replace('"', "'") in sentence for kind in (tuple, list))
    return str(value).removeprefix("mlx.core.").replace('"', "'") in sentence


def shows_numbers(sentence: str, numbers: list[Any]) -> bool:
    """Whether these numbers stand in a sentence one behind the other."""
    found = list(NUMBER.finditer(sentence))
    for i in range(len(found) - len(numbers) + 1):
        run = found[i : i + len(numbers)]
        gaps = (sentence[left.end() : right.start()] for left, right in pairwise(run))
        equal = (is_number(match.group(), number) for match, number in zip(run, numbers, strict=True))
        if all(equal) and all(BETWEEN.fullmatch(gap) for gap in gaps):
            return True
    return False


def is_number(text: str, number: float) -> bool:
    """Whether a text is this number, for whole ones of any length as well."""
    if isinstance(number, int) and text.lstrip("-").isdecimal():
        return int(text) == number
    return float(text) == number or (math.isnan(number) and math.isnan(float(text)))


def not_promised(error: ValueError, names: list[str]) -> list[str]:
    """The names that no docstring of the reference speaks of; none where a learner's package is tested."""
    package = sys.modules["tiny_llm"]
    if package.__name__ != "tiny_llm_ref":
        return []
    texts = list(docstrings_of(error.__traceback__))
    texts += [
        inspect.getdoc(getattr(package, name, None)) or "" for name in REFERENCE.findall(" ".join(texts))
    ]
    parts = [part for text in texts for part in text.split("\n\n") if "ValueError" in part]
    return [name for name in names if not any(f"`{name}`" in part for part in parts)]


def docstrings_of(trace: TracebackType | None) -> Iterator[str]:
    """The docstrings of the public functions of the reference that an error went through."""
    while trace:
        frame, trace = trace.tb_frame, trace.tb_next
        code, module = frame.f_code, frame.f_globals.get("__name__", "")
        if not is_of_package(module):
            yield from docstrings_of_wrapped(frame)
        elif "self" in frame.f_locals:
            owner = type(frame.f_locals["self"])
            if code.co_name.startswith("__"):
                yield inspect.getdoc(owner) or ""
            if not code.co_name.startswith("_") or code.co_name == "__call__":
                yield inspect.getdoc(getattr(owner, code.co_name, owner)) or ""
        elif not code.co_name.startswith("_"):
            yield from (inspect.cleandoc(text) for text in code.co_consts[:1] if isinstance(text, str))


def docstrings_of_wrapped(frame: FrameType) -> Iterator[str]:
    """The docstrings of what a check around functions of the reference was given."""
    for value in frame.f_locals.values():
        if isinstance(value, FunctionType) and is_of_package(value.__module__):
            yield inspect.getdoc(value) or ""
