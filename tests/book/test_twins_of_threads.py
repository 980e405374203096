"""Recorded runs of the engine's thread: what the reference does, in which no client pays for another."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from py_mini_racer import MiniRacer

from scripts.author.record_engine_thread import GONE, NO_FAULT, PROMPTS, Case, cases, record_case
from tests.book.figure_pages import VIZ
from tests.book.test_figure_data import recorded
from tests.book.twins import twin

SAMPLE = [
    Case(NO_FAULT, 0),
    Case(NO_FAULT, 2),
    Case("step-0", 0),
    Case("step-3", 4),
    Case("request-1", 0),
    Case("request-2", 7),
]


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    return recorded("engine-thread")


@pytest.fixture(scope="module")
def threads() -> Iterator[MiniRacer]:
    with twin("engine-thread") as context:
        context.eval((VIZ / "data" / "engine-thread.js").read_text(encoding="utf-8"))
        context.eval('var data = TinyData["engine-thread"], twin = TinyTwins.engineThread')
        yield context


def steps_of(data: dict[str, Any], case: Case) -> list[dict[str, Any]]:
    steps = data["runs"][data["cases"][f"{case.fault}/{case.gone}"]]
    assert isinstance(steps, list)
    return steps


@pytest.mark.parametrize("case", SAMPLE, ids=str)
def test_a_recorded_run_is_what_the_reference_does(data: dict[str, Any], case: Case) -> None:
    def without_text(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [step | {"up": [[id, reason] for id, _, reason in step["up"]]} for step in steps]

    assert without_text(record_case(case)) == without_text(steps_of(data, case))


def test_no_client_pays_for_another(data: dict[str, Any], threads: MiniRacer) -> None:
    def summary(case: Case) -> Any:
        return threads.execute(f'twin.summary(data, twin.stepsOf(data, "{case.fault}", {case.gone}))')

    alone = summary(Case(NO_FAULT, 0))
    assert [request["end"] for request in alone["requests"]] == ["length"] * len(PROMPTS)
    assert (alone["numFailed"], alone["numAgain"]) == (0, 0)
    for case in cases():
        found = summary(case)
        for number, (request, expected) in enumerate(zip(found["requests"], alone["requests"], strict=True)):
            if request["end"] == "length":
                assert request == expected, case
            elif request["end"] == "error":
                assert case.fault == f"request-{number}"
            else:
                assert request["end"] == "hung up"
                assert (number, case.gone > 0) == (GONE, True)
            assert expected["text"].startswith(request["text"])
        assert steps_of(data, case)[-1]["used"] == 0


def test_rows_count_what_is_computed_again(threads: MiniRacer) -> None:
    steps = [{"rows": [[0, 0, 8, 0]]}, {"rows": [[0, 8, 1, 1], [1, 0, 5, 1]]}, {"rows": [[0, 0, 10, 1]]}]
    rows = threads.execute(f"twin.rowsOf(data, {json.dumps(steps)})")
    assert [[row["numAgain"] for row in step] for step in rows] == [[0], [0, 0], [9]]
    assert rows[1][1] == {"id": 1, "first": 0, "tokens": 5, "isFinal": True, "numAgain": 0}
