"""Engines by how they compute their steps, with the arguments of `Engine`."""

from functools import partial
from typing import Any

from tiny_llm import Engine, overlapped, with_drafts
from tiny_llm.speculation.drafter import Drafter

overlapping_engine = partial(Engine, execution=overlapped)


def drafting_engine(
    *args: Any, drafter: Drafter | None = None, overlap: bool = False, **options: Any
) -> Engine:
    """An engine whose steps have drafts."""
    return Engine(*args, execution=with_drafts(drafter, overlap), **options)
