"""A damaged checkpoint loads or is refused in a sentence. `pdm run author damage` tries many more."""

import os
from pathlib import Path
from random import Random

import pytest

from scripts.author import damage
from scripts.author.damage_kinds import KINDS, Damage

PER_KIND = 6
FIRST_SEED = 20_000


@pytest.mark.parametrize("kind", sorted(set(KINDS), key=lambda kind: kind.__name__))
def test_a_damaged_checkpoint_loads_or_is_refused(kind: Damage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage, "damage", kind)
    faults = [damage.load_damaged(FIRST_SEED + i) for i in range(PER_KIND)]
    assert [fault for fault in faults if fault is not None] == []


def test_a_seed_damages_in_one_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Path, random: Random) -> str:
        return str(random.random())

    def fail(folder: Path) -> None:
        raise TypeError("not a sentence")

    monkeypatch.setattr(damage, "damage", refuse)
    monkeypatch.setattr(damage, "load_expanded", fail)
    first, again, other = (damage.load_damaged(seed) for seed in (1, 1, 2))
    assert first == f"{Random(1).random()}: TypeError: not a sentence"
    assert first == again != other


def die_below_0(seed: int) -> None:
    if seed < 0:
        os._exit(3)


def test_a_process_that_dies_is_a_fault_and_the_next_is_tried() -> None:
    outcomes = list(damage.load_apart(range(-1, 1), ref=True, load=die_below_0))
    assert outcomes == [(-1, f"the process died, or took more than {damage.SECONDS_PER_LOAD} s"), (0, None)]
