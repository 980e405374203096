"""The page that shows a recorded run: its times, its file input, and what it says of other files."""

import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page
from py_mini_racer import MiniRacer

from scripts.course import ROOT
from scripts.run.recorder import Recorder
from scripts.run.run_report import as_json
from tests.book.figure_pages import VIZ, new_page, plain_numbers, serious_faults
from tests.book.reference_runs import Clock, PacedModel
from tests.book.twins import twin
from tiny_llm import BatchGenerator, SamplingParams
from tiny_llm.speculation.endless_tokenizer import EndlessTokenizer

pytestmark = pytest.mark.sampled(3, "book/viz/", "scripts/run/")
NUM_CASES = 1000


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the shipped model."""
    file = tmp_path_factory.mktemp("trace") / "run.json"
    run_command("--out", str(file), "--max-tokens", "6")
    return file


@pytest.fixture(scope="module")
def paged_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the engine whose pool is too small for all, and that sees each prompt twice."""
    folder = tmp_path_factory.mktemp("paged")
    prompts = folder / "prompts.txt"
    prompts.write_text("In the beginning God created the heaven\nAnd the LORD spake unto Moses\n", "utf-8")
    pool = ("--blocks", "11", "--block-size", "4", "--overcommit", "--rounds", "2", "--batch-size", "3")
    options = ("--engine", "serving", *pool, "--prompts", str(prompts), "--max-tokens", "24")
    run_command("--out", str(folder / "run.json"), *options)
    return folder / "run.json"


def run_command(*options: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "scripts.run.trace", *options], cwd=ROOT, check=True, capture_output=True
    )


def open_page(
    browser: Browser, file: Path, width: int = 1400, scheme: str = "light"
) -> tuple[Page, list[str]]:
    """The page, and what it complains of or asks for from outside."""
    page = new_page(browser, width, scheme)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: request.url.startswith("file://") or complaints.append(request.url))
    page.goto(file.as_uri())
    return page, complaints


def in_ms(seconds: float | None) -> str:
    """As the page writes a time."""
    if seconds is None:
        return "\u2013"
    value = 1000 * seconds
    return f"{value:.0f} ms" if value >= 100 else f"{float(f'{value:.3g}'):g} ms"


def check_numbers(page: Page, run: dict) -> None:
    """The table and the summary say what the trace does."""
    rows = [
        [plain_numbers(cell) for cell in row.locator("th, td").all_inner_texts()]
        for row in page.locator("table tbody tr").all()
    ]
    chunks = [event["tokens"] for event in run["events"] if event["phase"] == "prefill"]
    assert rows == [
        [
            str(i),
            str(request["prompt_tokens"]),
            str(request["output_tokens"]),
            str(sum(str(i) in tokens for tokens in chunks)),
            in_ms(request["ttft_s"]),
            in_ms(request["longest_itl_s"]),
            request["finish_reason"],
        ]
        for i, request in enumerate(run["requests"])
    ]
    summary = plain_numbers(page.locator(".viz-summary").inner_text())
    totals = run["totals"]
    assert f"{totals['prompt_tokens']} prompt tokens and {totals['output_tokens']} output tokens" in summary
    assert f"in {totals['steps']} steps and {in_ms(totals['seconds'])}" in summary
    assert in_ms(totals["longest_itl_s"]) in summary


@pytest.fixture
def reader() -> Iterator[MiniRacer]:
    """V8 with what the page reads a run with."""
    with twin("scheduler-timeline") as context:
        context.eval("var TinyViz = {}")
        context.eval((VIZ / "parts" / "run-reader.js").read_text(encoding="utf-8"))
        yield context


def test_times_are_those_of_the_recorder(reader: MiniRacer) -> None:
    rng = random.Random(12)
    for _ in range(NUM_CASES):
        clock = Clock()
        model = PacedModel(clock, rng.randint(0, 9))
        generator = BatchGenerator(model, EndlessTokenizer(), rng.randint(1, 4), rng.randint(1, 20), 4096)
        recorder = Recorder(generator, clock)
        for _ in range(rng.randint(1, 4)):
            recorder.submit([1] * rng.randint(1, 30), SamplingParams(max_tokens=rng.randint(1, 6)))
        while generator.has_work:
            recorder.step()
        run = as_json(recorder, {})
        found = reader.execute(f"TinyRunReader.schedule({json.dumps(run)})")
        for request, felt in zip(run["requests"], found["felt"], strict=True):
            assert felt["ttft"] == 1000 * request["ttft_s"]
            assert felt["gap"] == (request["longest_itl_s"] and 1000 * request["longest_itl_s"])
        assert found["numSteps"] == run["totals"]["steps"]
        assert found["end"] == 1000 * run["totals"]["seconds"]


@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_trace_is_chosen_and_shown(browser: Browser, trace: Path, width: int, scheme: str) -> None:
    page, complaints = open_page(browser, VIZ / "timeline.html", width, scheme)
    page.set_input_files("#run-file", trace)
    page.locator("run-timeline svg .prefill").first.wait_for()
    check_numbers(page, json.loads(trace.read_text(encoding="utf-8")))
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    narrow = page.locator("run-timeline .viz-scroll svg").first.get_attribute("width")
    page.locator("[name=zoom]").focus()
    page.keyboard.press("ArrowRight")
    wide = page.locator("run-timeline .viz-scroll svg").first.get_attribute("width")
    assert float(wide) == 2 * float(narrow)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.locator("[name=look]").focus()
    page.keyboard.press("Home")
    assert page.locator(".viz-look").inner_text() in (
        "Nothing runs.",
        "Step 0 computes prompt tokens 0 to 16 of request 0.",
    )
    assert complaints == []
    assert serious_faults(page) == []


@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_hits_and_preemptions_of_an_engine_are_shown(
    browser: Browser, paged_trace: Path, width: int, scheme: str
) -> None:
    run = json.loads(paged_trace.read_text(encoding="utf-8"))
    kinds = [event["kind"] for event in run["pool_events"]]
    assert {"hit", "preemption"} <= set(kinds)
    page, complaints = open_page(browser, VIZ / "timeline.html", width, scheme)
    page.set_input_files("#run-file", paged_trace)
    page.locator("run-timeline svg .prefill").first.wait_for()
    check_numbers(page, run)
    drawing = page.locator("run-timeline .viz-scroll svg").first
    for kind in ("hit", "preemption"):
        assert drawing.locator(f".{kind}").count() == kinds.count(kind)
    found = run["totals"]["hit_tokens"]
    summary = page.locator(".viz-summary").inner_text()
    assert f"{found} tokens found in blocks, {kinds.count('preemption')} preemption" in summary
    assert f"at most {max(counts['used'] for counts in run['blocks'])} blocks in use" in summary
    for event in run["pool_events"]:
        time = 1000 * event["time_s"] + 1e-6
        page.evaluate("time => document.querySelector('run-timeline').lookAt(time)", time)
        counts = run["blocks"][event["step"]]
        said = page.locator(".viz-look").inner_text()
        assert f"Blocks: {counts['used']} used, {counts['cached']} cached, {counts['free']} free." in said
        what = f"finds {event['tokens']} tokens of" if event["kind"] == "hit" else "preempts"
        assert f"{what} request {event['request']}" in said.lower()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert complaints == []
    assert serious_faults(page) == []


def test_a_trace_is_dropped_on_the_page(browser: Browser, trace: Path) -> None:
    page, complaints = open_page(browser, VIZ / "timeline.html")
    dropped = page.evaluate_handle(
        """text => {
            const data = new DataTransfer();
            data.items.add(new File([text], "run.json"));
            return data;
        }""",
        trace.read_text(encoding="utf-8"),
    )
    page.dispatch_event("body", "drop", {"dataTransfer": dropped})
    page.locator("run-timeline svg .prefill").first.wait_for()
    check_numbers(page, json.loads(trace.read_text(encoding="utf-8")))
    assert complaints == []


def test_a_page_with_the_run_inside(browser: Browser, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("</script><script>document.title = 'taken'</script>\nAnd God said\n", encoding="utf-8")
    file = tmp_path / "run.html"
    run_command("--html", str(file), "--max-tokens", "5", "--prompts", str(prompts))
    page, complaints = open_page(browser, file)
    run = json.loads(re.search(r"var TinyRun = (.*);</script>", file.read_text(encoding="utf-8"))[1])
    check_numbers(page, run)
    assert page.title() == "A recorded run"
    assert complaints == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "This is no JSON."),
        ("[]", "it has no list of requests"),
        ('{"requests": [], "events": []}', "it has no request"),
        ('{"requests": [{"prompt_tokens": 3}], "events": []}', "request 0 has no output_tokens"),
        ('{"requests": [{"prompt_tokens": 3, "output_tokens": 1}], "events": []}', "request 0 has no ttft_s"),
        ("EVENT {}", "event 0 has no step"),
        ('EVENT {"step": 0, "phase": "sleep"}', "event 0 is neither prefill nor decode"),
        (
            'EVENT {"step": 0, "phase": "decode", "start_s": 2, "end_s": 1}',
            "event 0 has no start_s and end_s",
        ),
        (
            'EVENT {"step": 0, "phase": "decode", "start_s": 1, "end_s": 1, "tokens": {"7": 1}}',
            "event 0 has no tokens of its requests",
        ),
        (
            'EVENT {"step": 0, "phase": "decode", "start_s": 1, "end_s": 1, "tokens": {"0": 1}}',
            "event 0 does not say which tokens",
        ),
        (
            'EVENT {"step": 0, "phase": "decode", "start_s": 1, "end_s": 1, "tokens": {"0": 1}, '
            '"first": {"0": 3}, "sampled": [1]}',
            "event 0 does not say who got a token",
        ),
        (
            '{"requests": [{"prompt_tokens": 3, "output_tokens": 0}], "events": [], "pool_events": '
            '[{"step": 0, "time_s": 0, "kind": "hit", "request": 1, "tokens": 4}]}',
            "its pool_events are no hits and preemptions",
        ),
        (
            '{"requests": [{"prompt_tokens": 3, "output_tokens": 0}], "events": [], "blocks": [{"used": 1}]}',
            "its blocks are not used, cached and free",
        ),
    ],
)
def test_a_file_that_is_no_trace_gets_a_sentence(
    browser: Browser, tmp_path: Path, trace: Path, text: str, sentence: str
) -> None:
    if text.startswith("EVENT "):
        request = '{"prompt_tokens": 3, "output_tokens": 0}'
        text = f'{{"requests": [{request}], "events": [{text.removeprefix("EVENT ")}]}}'
    file = tmp_path / "bad.json"
    file.write_text(text, encoding="utf-8")
    page, complaints = open_page(browser, VIZ / "timeline.html")
    page.set_input_files("#run-file", file)
    page.locator("[role=alert]").wait_for()
    assert sentence in page.locator("[role=alert]").inner_text()
    page.set_input_files("#run-file", trace)  # and then a good one
    page.locator("run-timeline svg .prefill").first.wait_for()
    assert not page.locator("[role=alert]").is_visible()
    assert complaints == []
