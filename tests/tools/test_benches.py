"""The speed benchmark runs, writes what it found, and refuses what it does not know in one sentence."""

import json
import re
import shlex
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import mlx.core as mx
import pytest

from accelerated import race_inputs
from benches.chunk_sweep import serve_arrival
from benches.load import take
from benches.long import Run, against_cost, memory
from benches.trade_off import Point, ticks, trade_off_chart
from kernel_runtime import race as race_table
from scripts.chart import bar_chart, draw, line_chart
from scripts.course import ROOT
from tests.support import commands
from tests.support.checkpoints import save_small_model
from tests.support.cpu_kernels import use_device

pytestmark = [pytest.mark.usefixtures("busy_is_accepted"), pytest.mark.sampled(3, "benches/")]


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The option that selects a model too small for its speed to matter."""
    return "--model", str(save_small_model(tmp_path_factory.mktemp("small")))


def run(*arguments: str, bench: str = "") -> subprocess.CompletedProcess[str]:
    return commands.run("benches", *([bench] if bench else []), *arguments)


def test_one_engine_is_measured_and_written_down(tmp_path: Path, small_model: tuple[str, str]) -> None:
    result = run(*small_model, "--engine", "tiny-llm", "--repeats", "1", "--output", str(tmp_path))
    assert result.returncode == 0, result.stderr
    figures = json.loads((tmp_path / "speed.json").read_text())["tokens_per_s"]
    assert sorted(figures) == ["decode alone", "decode of 32", "decode of 8", "prefill of 512"]
    assert all(rates[0] > 0 for engines in figures.values() for rates in engines.values())
    ElementTree.fromstring((tmp_path / "speed.svg").read_text())


@pytest.mark.parametrize(
    ("bench", "options", "words"),
    [
        ("", "--engine vllm", "choose from tiny-llm"),
        ("chunking", "--sweep --prompt-tokens 2048", "2048"),  # more than the model holds
        ("chunking", "--output tests", "--sweep"),  # without which there is nothing to write
    ],
)
def test_what_makes_no_sense_is_refused(bench: str, options: str, words: str) -> None:
    result = run(*shlex.split(options), bench=bench)
    assert result.returncode == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("bench", "takes_a_model", "options", "lines"),
    [
        ("context", True, "--steps 1 --repeats 1", [r" 1024 tokens, .* ms"]),
        (
            "flash",
            False,
            "--length 33 --heads 2 --kv-heads 1 --head-dim 32 --repeats 1",
            [r"L +33  plain +[\d.]+ ms"],
        ),
        (
            "bandwidth",
            True,
            "--context-length 5 --max-tokens 1 --repeats 1",
            [r"memory bandwidth [\d.]+", r"measured [\d.]+"],
        ),
        (
            "sampling",
            True,
            "--repeats 1 --no-random",
            [r"as used here [\d.]+ ms", r"64 rows +greedy .* ratio"],
        ),
        (
            "long",
            True,
            "--length 70 --chunk 32 --side blocks --repeats 1",
            [r"blocks +70 .* MB +[\d.e+]+ +\d+%", r"to .* [\d.]+x .* to", "1 run in turns, 0 of 3 medians"],
        ),
        ("pressure", True, "--blocks 60 --copies 1 --max-tokens 2", [r"preemptions"]),
        (
            "speculation",
            True,
            "--batch 1 --batch 3 --max-tokens 10 --repeats 1",
            [r"answers that quote", *(rf" {size} +\d+" + r" +[\d.]+x" * 2 for size in (1, 3))],
        ),
        (
            "speculation",
            True,
            "--batch 1 --max-tokens 10 --repeats 1 --adaptive",
            [r"other answers", r" 1 +\d+ +[\d.]+x +- "],
        ),
        (
            "server",
            True,
            "--seconds 1 --num-requests 2 --highest 3 --side 'one budget' --hold 2 --repeats 1",
            [r"HTTP, streamed +\d+", r"one budget +[\d.]+/s", r"neither +0 ", r"in the end +0\.00"],
        ),
        ("chunking", True, "--repeats 1 --max-tokens 2", [r"longest gap .* whole [\d.]+"]),
    ],
    ids=[
        "context",
        "flash",
        "bandwidth",
        "sampling",
        "long",
        "pressure",
        "drafts",
        "adaptive",
        "server",
        "chunking",
    ],
)
def test_a_small_run_is_reported(
    bench: str, takes_a_model: bool, options: str, lines: list[str], small_model: tuple[str, str]
) -> None:
    result = run(*(small_model if takes_a_model else ()), *shlex.split(options), bench=bench)
    assert result.returncode == 0, result.stderr
    for line in lines:
        assert re.search(line, result.stdout), result.stdout


def test_bars_are_as_long_as_their_values() -> None:
    def widths(fast: float, slow: float) -> list[float]:
        root = ElementTree.fromstring(draw(bar_chart("a & b", {"speed": {"fast": [fast], "slow": [slow]}})))
        return [float(each.attrib["width"]) for each in root.iter() if each.get("class") == "bar"]

    wide, narrow = widths(40.0, 10.0)
    assert wide == 4 * narrow > 0
    assert widths(0.0, 0.0) == [0.0, 0.0]


def test_the_spread_goes_from_the_least_to_the_most() -> None:
    root = ElementTree.fromstring(
        draw(bar_chart("a", {"speed": {"one": [10.0, 40.0, 20.0], "sure": [20.0]}}))
    )
    (bar, equal) = (each for each in root.iter() if each.get("class") == "bar")
    (spread,) = (each.attrib["d"] for each in root.iter() if each.get("class") == "axis")
    low, high = map(float, re.findall(r"M([\d.]+) [\d.]+H([\d.]+)", spread)[0])
    assert bar.attrib["width"] == equal.attrib["width"]
    start, width = float(bar.attrib["x"]), float(bar.attrib["width"])
    assert (low - start, high - start) == pytest.approx((width / 2, 2 * width), abs=0.1)


def test_points_of_a_line_lie_as_their_values() -> None:
    chart = line_chart("a", "tokens", "speed", {"one": {512: [60.0], 1024: [30.0], 2048: [0.0]}})
    root = ElementTree.fromstring(draw(chart, "dark"))
    marks = [each.attrib for each in root.iter() if each.get("class") == "mark-0"][1:]  # after the legend's
    (x0, y0), (x1, y1), (x2, y2) = ((float(mark["cx"]), float(mark["cy"])) for mark in marks)
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y2 - y0 == pytest.approx(2 * (y2 - y1), abs=0.2)
    assert y0 < y1 < y2


@pytest.mark.parametrize(("later", "ratio"), [(1.0, "1.00"), (2.0, "2.00")])
def test_later_chunks_are_judged_by_the_line_through_the_first(later: float, ratio: str) -> None:
    chunks = [(1.0 + 0.25 * i) * (later if i >= 4 else 1.0) for i in range(9)]
    runs = {9 * 512: [Run(chunks, [0.1], 300)] * 2, 512: [Run(chunks[:1], [0.1], None)]}
    assert against_cost(runs, 9 * 512, 512) == ratio
    assert against_cost(runs, 512, 512) == "-"
    assert memory(runs[9 * 512], 150) == "0 MB\n2.00x"
    assert memory(runs[512], 150) == "-"


def test_a_token_is_timed_with_a_cache_and_without(small_model: tuple[str, str]) -> None:
    sizes = ("--length", "16", "--length", "5", "--tokens", "2", "--repeats", "1")
    result = run(*small_model, *sizes, bench="growth")
    assert result.returncode == 0, result.stderr
    rows = [line.split() for line in result.stdout.splitlines()[2:-1]]
    assert [(row[0], row[2], row[4]) for row in rows] == [("16", "ms", "ms"), ("5", "ms", "ms")]
    assert all(float(row[1]) > 0 and float(row[3]) > 0 for row in rows)


def test_every_means_of_the_packed_product_is_timed() -> None:
    sizes = ("--rows", "1", "--rows", "3", "--inputs", "128", "--outputs", "7", "--repeats", "1")
    result = run(*sizes, bench="matmul")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[2].split() == ["M", "1", "3"]
    means = {line[:26].strip(): [float(number) for number in line[26:].split()] for line in lines[3:-1]}
    assert {"array operations", "MLX's own", "dispatch"} <= set(means)
    assert all(len(numbers) == 4 and min(numbers[::2]) >= 0 for numbers in means.values())


def test_a_run_is_compared_and_predicted(small_model: tuple[str, str]) -> None:
    sizes = ("--repeats", "2", "--max-tokens", "4", "--budget", "48")
    result = run(*small_model, *sizes, bench="budget")
    assert result.returncode == 0, result.stderr
    assert "schedules are equal, step for step" in result.stdout
    assert re.search(r"tokens of the longest step .* 48 \(48 to 48\) +[\d.]+ *\n", result.stdout)
    predicted, measured = re.findall(r"^ steps +(\d+) +(\d+) *$", result.stdout, flags=re.MULTILINE)[0]
    assert predicted == measured


def test_memory_in_slots_and_in_blocks() -> None:
    sizes = ("--block-size", "1", "--block-size", "64", "--requests", "40", "--slots", "3")
    result = run(*sizes, bench="blocks")
    assert result.returncode == 0, result.stderr
    held, served = ([line.split() for line in part.splitlines()] for part in result.stdout.split("\n\n")[1:])
    names = ["reserved", "doubles", "batch", "1", "64"]
    assert [row[-4] for row in held[2:]] == names
    in_use = {row[-4]: int(row[-2].rstrip("%")) for row in held[2:]}
    assert in_use["reserved"] < in_use["batch"] < in_use["doubles"] < in_use["64"] < in_use["1"]
    assert in_use["1"] >= 99
    slots, small, large = served[3:]
    assert slots[3:6] == ["3.0", "to", "3"]
    for row in (slots, small, large):
        assert 98 <= sum(int(share.rstrip("%")) for share in row[-5:-1]) <= 102
    assert int(slots[-1]) > int(large[-1]) >= int(small[-1])
    assert small[-4] == "0%"


def test_conversations_with_prefix_caching_and_without(small_model: tuple[str, str]) -> None:
    load = ("--users", "2", "--turns", "2", "--system", "33", "--question", "5", "--answer", "3")
    result = run(*small_model, *load, "--repeats", "1", bench="prefix")
    assert result.returncode == 0, result.stderr
    talk, unshared = result.stdout.split("Nothing shared")
    sides = [re.findall(r"prompt tokens computed +(\d+) .*? +(\d+) ", each)[0] for each in (talk, unshared)]
    in_all = [int(re.findall(r", (\d+) prompt tokens", each)[0]) for each in (talk, unshared)]
    assert in_all[0] == in_all[1] == int(sides[0][0]) == int(sides[1][0]) == int(sides[1][1])
    assert int(sides[0][1]) <= in_all[0] - 2 * 32
    assert result.stdout.count("answers are equal") == 2


def test_the_parts_of_the_model_add_up(small_model: tuple[str, str]) -> None:
    result = run(*small_model, "--context", "9", "--repeats", "1", bench="parts")
    assert result.returncode == 0, result.stderr
    rows = {
        line[:16].strip(): [float(x) for x in line[16:].split()] for line in result.stdout.splitlines()[4:-1]
    }
    assert len(rows) == 7
    assert all(len(columns) == 4 and min(columns) >= 0 for columns in rows.values())
    together = rows.pop("together")
    for i, total in enumerate(together):  # one run: medians are its own figures, rounded
        assert abs(sum(columns[i] for columns in rows.values()) - total) < 0.1


def test_the_sweep_over_chunk_sizes_is_measured_and_written_down(
    tmp_path: Path, small_model: tuple[str, str]
) -> None:
    options = ["--sweep", "--repeats", "1", "--prompt-tokens", "100", "--batch-size", "2"]
    result = run(*small_model, *options, "--output", str(tmp_path), bench="chunking")
    assert result.returncode == 0, result.stderr
    written = json.loads((tmp_path / "chunking.json").read_text())
    assert [written["prompt_tokens"], written["decodes"]] == [100, 2]
    # Two others decode, one token each beside every chunk of the 100 tokens.
    assert {size: runs[0]["tokens_meanwhile"] for size, runs in written["runs"].items()} == {
        "8": 26,
        "16": 14,
        "32": 8,
        "64": 4,
        "whole": 2,
    }
    for runs in written["runs"].values():
        assert runs[0]["ttft_s"] > 0
        assert runs[0]["longest_gap_s"] > 0
    root = ElementTree.fromstring((tmp_path / "chunking.svg").read_text())
    assert sum(each.get("class") == "point" for each in root.iter()) == 5


def test_a_sweep_of_one_chunk_size_feels_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    from scripts.checkpoints.models import load_by_name
    from scripts.run.recorder import Recorder

    now = iter(range(10_000))
    real = Recorder.__init__
    monkeypatch.setattr(
        Recorder, "__init__", lambda self, generator: real(self, generator, lambda: next(now))
    )
    model, _ = load_by_name("qwen3-kjv-4m")
    arrivals = {size: serve_arrival(model, list(range(5, 69)), 2, size) for size in (16, 64)}
    # With a clock that counts its readings, a step is as long whatever it computes: four steps against one.
    assert arrivals[16].ttft_s > 3 * arrivals[64].ttft_s
    assert arrivals[16].longest_gap_s == arrivals[64].longest_gap_s


def test_the_long_prompt_goes_round_the_prompts() -> None:
    assert take([11, 13, 17], 0, 7) == (11, 13, 17, 11, 13, 17, 11)
    assert take([11, 13, 17], 8, 2) == (17, 11)


def test_points_lie_as_their_costs() -> None:
    points = [Point("8", 10, 900), Point("64 & more", 20, 300), Point("whole", 40, 100)]
    root = ElementTree.fromstring(trade_off_chart("a & b", "gap (ms)", "TTFT (ms)", points))
    places = [
        (float(each.attrib["cx"]), float(each.attrib["cy"]))
        for each in root.iter()
        if each.get("class") == "point"
    ]
    (x0, y0), (x1, y1), (x2, y2) = places
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)  # each twice the one before, on a logarithmic axis
    assert y0 < y1 < y2, "more is higher up"
    assert (y1 - y0) / (y2 - y0) == pytest.approx(0.5, abs=0.01)


def test_ticks_are_round_numbers_within_the_values() -> None:
    assert ticks([13, 260]) == [20, 50, 100, 200]
    assert ticks([0.4, 2]) == [0.5, 1, 2]


@pytest.mark.parametrize("points", [[], [Point("8", 0, 3)], [Point("8", 3, float("nan"))]], ids=str)
def test_a_point_that_a_logarithm_cannot_place_is_an_error(points: list[Point]) -> None:
    with pytest.raises(ValueError, match="above 0"):
        trade_off_chart("a", "x", "y", points)


def test_a_chart_within_a_page_takes_the_page_s_colours() -> None:
    points = [Point("8", 10, 900)]
    assert "<style>" in trade_off_chart("a", "x", "y", points)
    assert "<style>" not in trade_off_chart("a", "x", "y", points, standalone=False)


def test_a_mixed_step_is_timed_against_two(small_model: tuple[str, str]) -> None:
    result = run(*small_model, "--repeats", "1", "--decodes", "2", "--context", "9", bench="mixed")
    assert result.returncode == 0, result.stderr
    labels = [line.split("  ")[1] for line in result.stdout.splitlines() if "ratio" in line]
    assert labels == ["chunk of 16", "chunk of 64", "chunk of 256", "of 1", "of 8", "of 32"]
    assert result.stdout.count("a cache each") == 3


def test_the_scheduler_alone_is_timed_and_drawn(tmp_path: Path) -> None:
    sizes = ["--running", "5", "--waiting", "0", "--waiting", "1234", "--steps", "7"]
    result = run(*sizes, "--output", str(tmp_path), bench="scheduler")
    assert result.returncode == 0, result.stderr
    assert "5 decode, medians of 7 steps in turns; below" in result.stdout
    names = ["no blocks", "BlockManager, LatencyTarget"]
    for name in names:
        assert re.search(rf"{name} +\d+ \+ \d+ +\d+ \+ \d+", result.stdout), result.stdout
    times = json.loads((tmp_path / "scheduler.json").read_text(encoding="utf-8"))["times"]
    assert {each["waiting"] for each in times} == {0, 1234}
    assert all(len(each["schedule_us"]) == len(each["complete_us"]) == 7 for each in times)
    assert "1,234 waiting" in (tmp_path / "scheduler.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("device", "is_fresh"), [(mx.cpu, True), (mx.gpu, False)], ids=["CPU", "emulated GPU"]
)
def test_the_race_is_kept_until_it_is_run_again(
    device: mx.DeviceType, is_fresh: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_device(device, monkeypatch)
    monkeypatch.setattr(race_inputs, "ON_CPU", race_inputs.EMULATED)
    monkeypatch.setattr(race_table, "cache_dir", lambda: tmp_path)
    options = ("", "--mine", "--fresh" if is_fresh else "")  # which takes long under the emulator
    (tmp_path / "tiny_llm").symlink_to(ROOT / "tiny_llm_ref")  # the learner's
    results = [commands.run("benches", "race", *each.split(), folder=tmp_path) for each in options]
    assert [result.returncode for result in results] == [0] * 3, results[-1].stderr
    first, with_mine, again = (result.stdout for result in results)
    lines = re.findall(r"^(norm|rope|matmul|(?:paged )?attention|mlp|attention layer) +(\d+) .*", first, re.M)
    assert lines == [
        (operation, rows)
        for operation in ("norm", "rope", "matmul", "attention", "paged attention", "mlp", "attention layer")
        for rows in ("1", "8", "64", "256")
    ]
    assert (again == first) == (not is_fresh)
    assert re.search(r"operation +rows +yours +reference +", with_mine)
    assert max(map(len, with_mine.partition("\n\n")[2].splitlines())) <= 100  # a record's width
    kept = re.findall(r"^norm.*", first, re.M)[0].split()[2:]
    assert re.findall(r"^norm.*", with_mine, re.M)[0].split()[2:] == [kept[0], *kept]
