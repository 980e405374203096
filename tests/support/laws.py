"""Which examples a law is tried on: the same in every run of the suite, fresh ones in `author laws`."""

import base64
import json
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest
from hypothesis.database import InMemoryExampleDatabase

FAILED_ONCE = Path(__file__).with_name("failed_once.json")
"""Examples that a law failed on, by the test's id, as the choices that hypothesis made to draw them."""
NUM_GUARDED = 10
"""The first examples of a law, on which the contracts of `tests.support.contracts` are checked too."""


def failed_once(file: Path = FAILED_ONCE) -> dict[str, list[str]]:
    """The examples that are kept, in base 64."""
    kept: dict[str, list[str]] = json.loads(file.read_text(encoding="utf-8"))
    return kept


def database_of(kept: Mapping[str, Collection[str]]) -> InMemoryExampleDatabase:
    """What hypothesis tries first, and where it puts an example that fails."""
    database = InMemoryExampleDatabase()
    for test, examples in kept.items():
        for example in examples:
            database.save(test.encode(), base64.b64decode(example))
    return database


def examples_in(database: InMemoryExampleDatabase, test: str) -> list[str]:
    """The examples of a test that are in a database, in base 64."""
    return sorted(base64.b64encode(example).decode() for example in database.fetch(test.encode()))


def choose_examples(item: pytest.Function, first_seed: int) -> None:
    """Let each case of a law draw examples of its own, after those kept under its id.

    Hypothesis has no public way to do both: `seed` switches the examples kept off.
    """
    item.obj._hypothesis_internal_use_seed = zlib.crc32(item.nodeid.encode()) + first_seed
    item.obj._hypothesis_internal_database_key = item.nodeid.encode()  # not its source, which changes
