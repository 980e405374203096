"""The figures of the book in a browser: their numbers, the keyboard, themes, widths and accessibility."""

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from figure_pages import VIZ, Shown, open_browser, serious_faults, show
from playwright.sync_api import Browser
from reference_runs import play, tensors_of
from test_figure_data import recorded

from scripts.book.figures import element_of
from scripts.checkpoints import SHIPPED_MODEL
from scripts.course import ROOT
from tiny_llm_ref import BatchingKvCache, ModelConfig, TinyKvFullCache
from tiny_llm_ref.checkpoint import read_json
from tiny_llm_ref.chunked_prefill import (
    chunked_attention_mask,
    chunked_prefill_schedule,
    num_prefill_steps,
    repaired_prefill_schedule,
)
from tiny_llm_ref.roofline import bandwidth_limit, cache_bytes_per_token, decode_bytes_per_token
from tiny_llm_ref.sampler import keep_likely

FIGURES = sorted(path.stem for path in VIZ.glob("*.py") if path.stem != "still")
FIRST = {  # an attribute of each
    "attention-mask": "queries",
    "kv-cache": "slots",
    "roofline": "batch",
    "sampler": "prompt",
    "scheduler-timeline": "prompts",
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


def integers(text: str) -> list[int]:
    return [int(found) for found in re.findall(r"\d+", text)]


@pytest.mark.parametrize("theme", ["light", "navy", "rust"])
@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("figure", FIGURES)
def test_a_figure_draws_itself_without_complaint(
    browser: Browser, tmp_path: Path, figure: str, width: int, theme: str
) -> None:
    element = element_of(figure)
    shown = show(browser, tmp_path, f"<{element}>still</{element}>", width, theme)
    assert shown.complaints == []
    assert all(url.startswith("file://") for url in shown.requests)
    assert shown.figure.locator(".viz-canvas svg").count() >= 1
    assert "still" not in shown.figure.inner_text().split()
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= width
    for details in shown.figure.locator("details > summary").all():
        details.click()
    assert serious_faults(shown.page) == []
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= width
    shown.page.close()


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
    shown.page.locator("details summary").focus()
    shown.page.keyboard.press("Enter")
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


def cache_numbers(shown: Shown, cache: BatchingKvCache, layers: int) -> None:
    """The summary says what the reference's cache holds."""
    lengths, slots = cache.lengths, cache.active_slots
    num_bytes = layers * sum(array.nbytes for array in cache.state)
    num_slots, heads, capacity, dim = cache.state[0].shape
    read = len(lengths) * max(lengths)
    expected = [
        len(slots),
        num_slots,
        *slots,
        sum(lengths),
        len(lengths),
        max(lengths),
        read,
        read - sum(lengths),
    ]
    expected += [num_slots, capacity, 2 * layers * heads * dim * cache.state[0].dtype.size]
    *found, amount, percent = re.findall(r"\d[\d.]*(?: [KMG]B)?", shown.summary.replace(". ", " "))
    assert [int(each) for each in found] == expected
    unit = {"KB": 1e3, "MB": 1e6, "GB": 1e9}
    assert float(amount[:-3]) * unit[amount[-2:]] == pytest.approx(num_bytes, rel=0.005)
    assert int(percent) == round(100 * sum(lengths) / (num_slots * capacity))


def test_cache_says_what_the_reference_holds(browser: Browser, tmp_path: Path) -> None:
    heads, dim, layers = 3, 32, 5

    def entries(B: int, L: int) -> mx.array:
        return mx.zeros((B, heads, L, dim))

    def add(slot: int, length: int) -> None:
        single = TinyKvFullCache()
        single.update_and_fetch(entries(1, length), entries(1, length))
        cache.add_request(single, slot)

    def press(name: str) -> None:
        shown.control(name).focus()
        shown.page.keyboard.press("Enter")

    element = f'<kv-cache slots="3" lengths="60 5" join="11" layers="{layers}" kv-heads="{heads}"></kv-cache>'
    shown = show(browser, tmp_path, element)
    cache = BatchingKvCache(3)
    add(0, 60)
    add(1, 5)
    cache_numbers(shown, cache, layers)
    press("decode-8")
    for _ in range(8):
        cache.update_and_fetch(entries(2, 1), entries(2, 1))
    cache_numbers(shown, cache, layers)
    assert shown.slide("join", "ArrowRight") == 12
    press("joins")
    add(2, 12)
    cache_numbers(shown, cache, layers)
    assert shown.control("joins").is_disabled()
    press("leave-0")
    cache.remove_request(0)
    cache_numbers(shown, cache, layers)
    assert "The last row, slot 2, moved into row 0" in shown.figure.inner_text()
    assert (
        shown.page.evaluate("document.activeElement.name") == "decode"
    )  # the focus is not lost with the button
    press("decode")
    cache.update_and_fetch(entries(2, 1), entries(2, 1))
    cache_numbers(shown, cache, layers)
    shown.page.locator("details summary").click()
    layers = int(shown.slide("layers", "ArrowRight"))
    cache_numbers(shown, cache, layers)
    assert shown.complaints == []


def sampler_numbers(shown: Shown, prompt: int, temp: float, top_p: float, top_k: int, min_p: float) -> None:
    """The summary says what the reference's sampler draws from."""
    logprobs = mx.array(recorded("sampler")["prompts"][prompt]["logprobs"])[None]
    likeliest = int(mx.argmax(logprobs))
    kept = keep_likely(logprobs, top_p, top_k or None, min_p)
    if temp == 0:
        kept = mx.where(mx.arange(kept.shape[1]) == likeliest, logprobs, -mx.inf)
    probs, is_kept = np.exp(np.array(logprobs, dtype=np.float64))[0], np.isfinite(np.array(kept))[0]
    after = np.array(mx.softmax(kept / (temp or 1), axis=-1))[0]
    found = [float(each) for each in re.findall(r"\d[\d.]*", re.sub("\u201c.*\u201d", "", shown.summary))]
    num_kept, num_tokens, *percents = found
    assert (num_kept, num_tokens) == (is_kept.sum(), len(probs))
    expected = [100 * each for each in (probs[is_kept].sum(), probs[likeliest], after[likeliest])]
    assert percents == pytest.approx(expected, abs=0.051)


def test_sampler_says_what_the_reference_does(browser: Browser, tmp_path: Path) -> None:
    shown = show(browser, tmp_path, '<viz-sampler prompt="1"></viz-sampler>')
    sampler_numbers(shown, 1, 1, 0, 0, 0)
    temp = shown.slide("temperature", *["ArrowLeft"] * 7)
    assert temp == pytest.approx(0.65)
    sampler_numbers(shown, 1, temp, 0, 0, 0)
    shown.slide("top-k", "End", "ArrowLeft", "ArrowLeft")
    sampler_numbers(shown, 1, temp, 0, 50, 0)
    top_p = shown.slide("top-p", "End", *["ArrowLeft"] * 20)
    assert top_p == pytest.approx(0.8)
    sampler_numbers(shown, 1, temp, top_p, 50, 0)
    shown.control("prompt").focus()
    shown.page.keyboard.press("ArrowDown")
    sampler_numbers(shown, 2, temp, top_p, 50, 0)
    min_p = shown.slide("min-p", *["ArrowRight"] * 25)
    sampler_numbers(shown, 2, temp, top_p, 50, min_p)
    temp = shown.slide("temperature", "Home")
    sampler_numbers(shown, 2, temp, top_p, 50, min_p)
    assert "dropped by greedy" in shown.figure.inner_text()
    assert shown.complaints == []


def significant(value: float) -> float:
    return float(f"{value:.3g}")


def roofline_numbers(shown: Shown, machine: tuple[float, float], bits: int, batch: int, context: int) -> None:
    """The summary's figures of a decode are those of the reference's roofline."""
    config = ModelConfig.from_dict(read_json(ROOT / "models" / SHIPPED_MODEL / "config.json"))
    bandwidth, peak = machine[0] * 1e9, machine[1] * 1e9
    floats = mx.float32 if bits == 32 else mx.float16
    weight_bytes = decode_bytes_per_token(config, tensors_of(config, bits))
    limit = bandwidth_limit(bandwidth, weight_bytes, batch, context * cache_bytes_per_token(config, floats))
    ridge, named, intensity, at_most, *_ = (
        float(each) for each in re.findall(r"\d[\d.]*\d|\d", shown.summary)
    )
    assert ridge == significant(peak / bandwidth)
    assert named == batch
    if intensity < ridge:
        assert at_most == pytest.approx(limit, rel=0.01)
        assert "memory decides: at most" in shown.summary
    else:
        assert at_most < limit
        assert "the processor decides" in shown.summary


def test_roofline_says_what_the_reference_does(browser: Browser, tmp_path: Path) -> None:
    shown = show(browser, tmp_path, '<viz-roofline batch="4" context="256"></viz-roofline>')
    data = recorded("roofline")
    roofline_numbers(shown, (data["bandwidth"], data["peak"]), 32, 4, 256)
    shown.slide("batch", "Home")
    roofline_numbers(shown, (data["bandwidth"], data["peak"]), 32, 1, 256)
    shown.slide("context", "End", "ArrowLeft")
    roofline_numbers(shown, (data["bandwidth"], data["peak"]), 32, 1, 16384)
    for name, value in (("bandwidth", "123.5"), ("peak", "4000")):
        shown.control(name).focus()
        shown.page.keyboard.press("Control+A")
        shown.page.keyboard.type(value)
    for bits in (32, 16, 8, 4):
        shown.control("bits").select_option(str(bits))
        roofline_numbers(shown, (123.5, 4000), bits, 1, 16384)
    before = shown.summary
    shown.slide("chunk", "End")
    assert shown.summary != before
    shown.control("model").select_option("qwen3-0.6b")
    assert "qwen3" not in shown.summary
    shown.control("peak").fill("")
    assert shown.summary == "Bandwidth and peak must be numbers above 0."
    assert shown.complaints == []


@pytest.mark.parametrize(
    ("element", "sentence"),
    [
        ('<attention-mask queries="5" keys="4">', "keys must be an integer from 5 to 24, not 4"),
        ('<attention-mask heads="6" kv-heads="4">', "4 does not divide 6"),
        ('<attention-mask mask="diagonal">', "mask is one of right, off-by-one, peek, left, none"),
        ('<scheduler-timeline prompts="12 x">', "prompts must be integers from 1 to 4096, not 12 x"),
        ('<kv-cache slots="1" lengths="4 5">', "lengths are more than the 1 slot"),
        ('<viz-roofline bandwidth="-1">', "bandwidth must be a number"),
        ('<viz-sampler temperature="9">', "temperature must be a number from 0 to 2, not 9"),
    ],
)
def test_an_attribute_that_makes_no_sense_is_named(
    browser: Browser, tmp_path: Path, element: str, sentence: str
) -> None:
    shown = show(browser, tmp_path, f"{element}</{element[1:].split()[0]}>")
    assert sentence in shown.figure.locator("[role=alert]").inner_text()


@pytest.mark.parametrize("figure", FIGURES)
def test_the_still_is_the_figure_s_own_drawing(figure: str) -> None:
    program = [sys.executable, str(VIZ / f"{figure}.py")]
    still = subprocess.run(program, input="{}", capture_output=True, text=True, check=True).stdout
    assert ET.fromstring(still).tag == "{http://www.w3.org/2000/svg}svg"
    assert "aria-label" in still
    refused = subprocess.run(program, input=json.dumps({FIRST[figure]: "x"}), capture_output=True, text=True)
    assert (refused.returncode, FIRST[figure] in refused.stderr) == (1, True)


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
    shown.page.locator("details summary").click()
    assert shown.slide("prompt-1", "ArrowRight") == 41
    budget_numbers(shown, [150, 41], 8, 73, 32)
    shown.figure.get_by_role("button", name="Add a request").click()
    budget_numbers(shown, [150, 41, 41], 8, 73, 32)
    assert shown.complaints == []
