"""The speed benchmark runs, writes what it found, and refuses what it does not know in one sentence."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from benches.chart import bar_chart
from scripts.course import ROOT


def run(*arguments: str, bench: str = "speed") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"benches.{bench}", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_one_engine_is_measured_and_written_down(tmp_path: Path) -> None:
    result = run("--engine", "tiny-llm", "--repeats", "1", "--output", str(tmp_path))
    assert result.returncode == 0, result.stderr
    figures = json.loads((tmp_path / "speed.json").read_text())["tokens_per_s"]
    assert sorted(figures) == ["decode alone", "decode of 32", "decode of 8", "prefill of 512"]
    assert all(rates[0] > 0 for engines in figures.values() for rates in engines.values())
    ElementTree.fromstring((tmp_path / "speed.svg").read_text())


def test_an_unknown_engine_is_refused() -> None:
    result = run("--engine", "vllm")
    assert result.returncode == 2
    assert "choose from tiny-llm" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_longest_bar_is_the_largest_value() -> None:
    root = ElementTree.fromstring(bar_chart("a & b", {"speed": {"fast": 40.0, "slow": 10.0}}))
    widths = [float(each.attrib["width"]) for each in root.iter() if each.tag.endswith("rect")]
    assert widths[0] == 4 * widths[1]


def test_a_token_is_timed_with_a_cache_and_without() -> None:
    result = run("--length", "16", "--length", "5", "--tokens", "2", bench="growth")
    assert result.returncode == 0, result.stderr
    rows = [line.split() for line in result.stdout.splitlines()[2:]]
    assert [(row[0], row[2], row[4]) for row in rows] == [("16", "ms", "ms"), ("5", "ms", "ms")]
    assert all(float(row[1]) > 0 and float(row[3]) > 0 for row in rows)


def test_every_means_of_the_packed_product_is_timed() -> None:
    sizes = ("--rows", "1", "--rows", "3", "--inputs", "128", "--outputs", "7", "--repeats", "1")
    result = run(*sizes, bench="matmul")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[2].split() == ["M", "1", "3"]
    means = {line[:26].strip(): [float(number) for number in line[26:].split()] for line in lines[3:]}
    assert {"array operations", "MLX's own", "dispatch"} <= set(means)
    assert all(len(numbers) == 4 and min(numbers[::2]) >= 0 for numbers in means.values())


def test_the_parts_of_the_model_add_up() -> None:
    result = run("--context", "9", "--repeats", "1", bench="parts")
    assert result.returncode == 0, result.stderr
    rows = {
        line[:16].strip(): [float(x) for x in line[16:].split()] for line in result.stdout.splitlines()[4:]
    }
    assert len(rows) == 7
    assert all(len(columns) == 4 and min(columns) >= 0 for columns in rows.values())
    together = rows.pop("together")
    for i, total in enumerate(together):  # one run: medians are its own figures, rounded
        assert abs(sum(columns[i] for columns in rows.values()) - total) < 0.1
