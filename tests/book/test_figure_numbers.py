"""The numbers that schedules and masks show in a browser are those of the reference."""

from itertools import pairwise
from pathlib import Path

import numpy as np
from playwright.sync_api import Browser

from tests.book.figure_pages import Shown, integers, show
from tests.book.reference_runs import play, play_budget
from tiny_llm.exercises.chunked_prefill import (
    chunked_attention_mask,
    chunked_prefill_schedule,
    num_prefill_steps,
    repaired_prefill_schedule,
)


def timeline_numbers(shown: Shown, settings: dict) -> None:
    """The summary and the table of a timeline say what the reference does."""
    whole = {**settings, "chunk": max(settings["prompts"])}
    chunked, whole = play(settings), play(whole)
    expected = [settings["chunk"]]
    for run in (chunked, whole):
        gaps = [gap for gap in run["gap"] if gap is not None]
        expected += [
            run["numSteps"],
            int(run["calls"][-1]["end"]),
            int(max(gaps)),
            run["gap"].index(max(gaps)),
        ]
    assert integers(shown.summary) == expected
    number = {None: "\u2013"}
    for i, row in enumerate(shown.rows()):
        felt = [run[key][i] for key in ("ttft", "gap") for run in (chunked, whole)]
        prefills = [call for call in chunked["calls"] if call["phase"] == "prefill"]
        chunks = sum(request == i for call in prefills for request, _ in call["tokens"])
        numbers = [i, settings["prompts"][i], settings["outputs"][i], chunks, *felt]
        assert row == [number.get(each, f"{each:g}" if each is not None else "") for each in numbers]


def step_numbers(shown: Shown, settings: dict) -> None:
    """With steps as the axis, times are counted in steps."""
    expected = [settings["chunk"]]
    felt = []
    for chunk in (settings["chunk"], max(settings["prompts"])):
        run = play({**settings, "chunk": chunk})
        tokens = [token_steps(run, i) for i in range(len(settings["prompts"]))]
        gaps = [max(later - earlier for earlier, later in pairwise(steps)) for steps in tokens]
        ttft = [steps[0] + 1 - arrival for steps, arrival in zip(tokens, settings["arrivals"], strict=True)]
        felt.append((ttft, gaps))
        expected += [run["numSteps"], max(gaps), gaps.index(max(gaps))]
    assert integers(shown.summary) == expected
    for i, row in enumerate(shown.rows()):
        assert row[4:] == [str(felt[run][key][i]) for key in (0, 1) for run in (0, 1)]


def token_steps(run: dict, request: int) -> list[int]:
    """The step in which each token of a request came."""
    calls = [call for call in run["calls"] if request in dict(call["tokens"])]
    last_chunk = [call["step"] for call in calls if call["phase"] == "prefill"][-1:]
    return last_chunk + [call["step"] for call in calls if call["phase"] == "decode"]


def test_timeline_says_what_the_reference_does(browser: Browser, tmp_path: Path) -> None:
    element = (
        '<scheduler-timeline prompts="12 30 150" outputs="9 12" arrivals="0 0 3" chunk="16" call-cost="8">'
    )
    shown = show(browser, tmp_path, f"{element}</scheduler-timeline>")
    settings = {
        "prompts": [12, 30, 150],
        "outputs": [9, 12, 12],
        "arrivals": [0, 0, 3],
        "chunk": 16,
        "batch": 4,
        "callCost": 8,
    }
    timeline_numbers(shown, settings)
    shown.slide("chunk", "ArrowRight", "ArrowRight")
    settings["chunk"] = 64
    timeline_numbers(shown, settings)
    settings["batch"] = int(shown.slide("batch", "Home"))
    timeline_numbers(shown, settings)
    settings["callCost"] = int(shown.slide("call-cost", "Home"))
    assert (settings["batch"], settings["callCost"]) == (1, 0)
    timeline_numbers(shown, settings)
    shown.control("axis").select_option("steps")
    step_numbers(shown, settings)
    shown.control("axis").select_option("cost")
    for key, name in (("prompts", "prompt"), ("outputs", "output"), ("arrivals", "arrival")):
        settings[key][1] = int(shown.slide(f"{name}-1", "ArrowRight", "ArrowRight", "ArrowRight"))
        timeline_numbers(shown, settings)
    assert (settings["prompts"][1], settings["outputs"][1], settings["arrivals"][1]) == (33, 15, 3)
    assert shown.complaints == []


def mask_numbers(shown: Shown, L: int, S: int, start: int, query: int) -> None:
    """The summary says which keys a query sees under the right mask."""
    seen = np.array(chunked_attention_mask(start, L, S)) == 0
    keys = np.flatnonzero(seen[query]).tolist()
    spelled = [0] if keys == [0] else [keys[0], keys[-1]]
    assert integers(shown.summary) == [query, start + query, *spelled, len(keys), S, int(seen.sum()), L * S]


def test_mask_says_what_the_reference_does(browser: Browser, tmp_path: Path) -> None:
    shown = show(browser, tmp_path, '<attention-mask queries="3" keys="7" show="mask"></attention-mask>')
    mask_numbers(shown, 3, 7, 4, 2)
    assert shown.slide("query", "Home") == 0
    mask_numbers(shown, 3, 7, 4, 0)
    assert shown.slide("queries", "ArrowRight", "ArrowRight") == 5
    mask_numbers(shown, 5, 7, 2, 0)  # a chunk at the end of the keys stays there
    assert shown.slide("query", "End") == 4
    mask_numbers(shown, 5, 7, 2, 4)
    assert shown.slide("query", "Home") == 0
    assert shown.slide("chunk-start", "Home") == 0
    mask_numbers(shown, 5, 7, 0, 0)
    assert shown.slide("keys", "End") == 24
    mask_numbers(shown, 5, 24, 0, 0)
    assert shown.figure.locator(".viz-canvas rect.seen").count() == 15
    shown.control("mask").focus()
    shown.page.keyboard.press("ArrowDown")
    assert shown.control("mask").input_value() == "off-by-one"
    assert "sees no key" in shown.summary
    assert shown.figure.locator(".viz-canvas rect.missed").count() == 5


def test_heads_that_share_keys(browser: Browser, tmp_path: Path) -> None:
    element = '<attention-mask heads="6" kv-heads="3" show="heads" head="4"></attention-mask>'
    shown = show(browser, tmp_path, element)
    assert integers(shown.summary) == [4, 2, 4, 5, 3, 6]
    shown.control("grouping").select_option("tile")
    assert integers(shown.summary) == [4, 1, 1, 4, 3, 6, 4, 6]
    assert shown.figure.locator("line.wrong").count() == 4
    shown.control("grouping").select_option("repeat")
    assert shown.slide("kv-heads", "End") == 3  # the fourth of 1, 2, 3, 6
    assert integers(shown.summary) == [4, 4, 4, 6, 6]
    assert shown.slide("heads", "Home") == 1
    assert integers(shown.summary) == [0, 0, 0, 1, 1]


def done_after(steps: list, request: int, prompt: int) -> str:
    """Steps until a prompt is computed, as the table says it."""
    for step in steps:
        prompt -= sum(c["tokens_processed"] for c in step["prefill_chunks"] if c["id"] == request)
        if prompt == 0:
            return str(step["step"] + 1)
    return "never"


def budget_numbers(shown: Shown, prompts: list[int], decodes: int, budget: int, chunk: int) -> None:
    """The table says after how many steps of either schedule a prompt is computed."""
    requests = [{"id": i, "prompt_length": length} for i, length in enumerate(prompts)]
    exercise = chunked_prefill_schedule(requests, decodes, budget, chunk)
    repaired = repaired_prefill_schedule(requests, [7] * decodes, budget, chunk, 7)
    assert shown.rows() == [
        [
            str(i),
            str(length),
            str(num_prefill_steps(length, chunk, budget)),
            done_after(exercise, i, length),
            done_after(repaired, i, length),
        ]
        for i, length in enumerate(prompts)
    ]


def test_budgets_are_those_of_the_reference(browser: Browser, tmp_path: Path) -> None:
    element = (
        '<scheduler-timeline loop="budget" prompts="150 40" outputs="7" chunk="64" budget="70" decodes="3">'
    )
    shown = show(browser, tmp_path, f"{element}</scheduler-timeline>")
    budget_numbers(shown, [150, 40], 3, 70, 64)
    assert shown.slide("decodes", *["ArrowRight"] * 5) == 8
    budget_numbers(shown, [150, 40], 8, 70, 64)
    assert "can never be computed" in shown.summary
    assert shown.slide("budget", "ArrowRight", "ArrowRight", "ArrowRight") == 73
    budget_numbers(shown, [150, 40], 8, 73, 64)
    shown.slide("chunk", "ArrowLeft")
    budget_numbers(shown, [150, 40], 8, 73, 32)
    assert shown.slide("prompt-1", "ArrowRight") == 41
    budget_numbers(shown, [150, 41], 8, 73, 32)
    shown.figure.get_by_role("button", name="Add a request").click()
    budget_numbers(shown, [150, 41, 41], 8, 73, 32)
    assert shown.complaints == []


def test_one_budget_is_the_simulators(browser: Browser, tmp_path: Path) -> None:
    options = 'prompts="12 30 100" outputs="7" chunk="16" budget="24" batch="2" call-cost="8"'
    shown = show(browser, tmp_path, f'<scheduler-timeline loop="engine" {options}></scheduler-timeline>')
    settings = {
        "prompts": [12, 30, 100],
        "outputs": [7] * 3,
        "arrivals": [0] * 3,
        "chunk": 16,
        "batch": 2,
        "callCost": 8,
    }

    def check(budget: int, threshold: int) -> None:
        engine = play_budget(settings | {"budget": budget, "threshold": threshold, "partial": 0})
        phases = play(settings)
        felt = [
            [str(int(run[key][i])) for key in ("ttft", "gap") for run in (phases, engine)] for i in range(3)
        ]
        assert [row[4:] for row in shown.rows()] == felt
        assert f"One budget of {budget}: {engine['numSteps']} steps" in shown.summary

    check(24, 0)
    assert shown.slide("budget", "ArrowRight") == 25
    check(25, 0)
    assert shown.slide("threshold", "ArrowRight", "ArrowRight", "ArrowRight") == 3
    check(25, 3)
    assert shown.complaints == []
