"""Sentences for those who let an array cross into another thread."""

from dataclasses import fields, is_dataclass
from typing import Any

PLAIN = (str, bytes, bool, int, float, type(None))
LAW = (
    "an MLX array was used outside of the thread that made it: let the engine's thread load the model, run "
    "every step and free the engine, and let only numbers and text leave it"
)


def explained(error: BaseException) -> str:
    """One sentence about an error in the engine's thread."""
    text = " ".join(str(error).split())
    if isinstance(error, RuntimeError) and "There is no Stream" in text:
        return f"{LAW} ({text})"
    if isinstance(error, ValueError) and text:
        return text  # a sentence already
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def check_plain(value: Any, place: str = "report") -> None:
    """Raise TypeError, showing the `place`, if anything in a message is not text or a number.

    Looks into dataclasses, tuples and mappings.
    """
    if isinstance(value, PLAIN):
        return
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            check_plain(getattr(value, field.name), f"{place}.{field.name}")
    elif isinstance(value, tuple):
        for number, item in enumerate(value):
            check_plain(item, f"{place}[{number}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            check_plain(key, f"a key of {place}")
            check_plain(item, f"{place}[{key!r}]")
    else:
        raise TypeError(
            f"{place} is of type {type(value).__name__}, but only text and numbers may leave the thread"
        )
