"""The check of every limit and count that must be a whole number."""

from numbers import Integral


def check_integer(name: str, value: object, least: int) -> None:
    """Raise ValueError, with its `name`, unless the value is an integer of at least `least`; True is none."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise ValueError(f"{name} must be an integer, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
