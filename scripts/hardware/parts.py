"""The parts of the report: commands of the course, and what to read from their output."""

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from scripts.hardware.quiet import ACCEPT_BUSY
from scripts.hardware.report import Value

Results = dict[str, Value]
NUM_SCHEDULES = 500
NUM_ENGINE_SCHEDULES = 500
NUM_FEATURE_SCHEDULES = 100
FEATURES = ("--drafts", "--grammars", "--quantized-kv", "--experts", "--ranks", "2")
BENCH_ENGINES = ("tiny-llm", "mlx-lm as installed")
DEMO_TOTALS = {
    "output_tokens_per_s": "tokens/s",
    "itl_p99_s": "p99 gap in s",
    "longest_itl_s": "longest gap in s",
}


@dataclass(frozen=True)
class Part:
    """One command.

    Args:
        name: in the report.
        module: that Python runs.
        command: of `pdm run`.
        arguments: of both.
        share: of the time, compared with those of the other parts; enough to compile, where it comes first.
        read: the results in its output, and in the folder of its files; ValueError if they are not there.
        writes_files: whether it takes `--output FOLDER`.
        environment: variables that are set for it.
    """

    name: str
    module: str
    command: str
    arguments: tuple[str, ...]
    share: float
    read: Callable[[str, Path], Results]
    writes_files: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        """What a reader types to run it alone."""
        words = (f'"{word}"' if " " in word else word for word in self.arguments)
        settings = (f"{name}={value}" for name, value in self.environment.items())
        return " ".join([*settings, "pdm run", self.command, *words])

    def to_run(self, folder: Path) -> list[str]:
        """The command, with a folder for its files."""
        output = ["--output", str(folder)] if self.writes_files else []
        return [sys.executable, "-m", self.module, *self.arguments, *output]


def read_findings(output: str, folder: Path) -> Results:
    """How many findings of each level, and the text of those that are not ok."""
    found = re.findall(r"^(ok|note|problem) +(.+)$", output, re.M)
    if not found:
        raise ValueError("doctor printed no finding")
    texts = {level: [text for each, text in found if each == level] for level in ("ok", "note", "problem")}
    return {"ok": len(texts["ok"]), "notes": texts["note"], "problems": texts["problem"]}


def read_tests(output: str, folder: Path) -> Results:
    """How many tests passed, failed and were skipped, and why."""
    last_line = output.strip().rpartition("\n")[2]
    counts = {
        word: int(number)
        for number, word in re.findall(r"(\d+) (passed|failed|skipped|errors?)\b", last_line)
    }
    if "passed" not in counts and "failed" not in counts:
        raise ValueError("pytest printed no sum")
    reasons = re.findall(r"^SKIPPED \[\d+\] \S+ (.+)$", output, re.M)
    return {**counts, "skipped because": sorted(set(reasons))}


def read_equality(output: str, folder: Path) -> Results:
    """How many answers are those of mlx-lm."""
    found = re.findall(r"^prompt \d+: (\d+) tokens, (equal|different)$", output, re.M)
    if not found:
        raise ValueError("no prompt was compared")
    num_equal = sum(word == "equal" for _, word in found)
    return {"answers": len(found), "equal": num_equal, "tokens": sum(int(number) for number, _ in found)}


def read_schedules(output: str, folder: Path) -> Results:
    """How many schedules were tried, and from which seed."""
    found = re.search(
        r"^(\d+) schedules, seed (\d+): every request got the tokens it gets alone$", output, re.M
    )
    if not found:
        raise ValueError("not every schedule was tried")
    return {"schedules": int(found[1]), "seed": int(found[2])}


def read_speed(output: str, folder: Path) -> Results:
    """Median tokens/s by workload and engine."""
    file = folder / "speed.json"
    figures = json.loads(file.read_text(encoding="utf-8"))["tokens_per_s"] if file.is_file() else {}
    medians: Results = {
        f"{workload}, {engine}": round(median(rates), 1)
        for workload, engines in figures.items()
        for engine, rates in engines.items()
    }
    for engine in BENCH_ENGINES:
        if not any(name.endswith(f", {engine}") for name in medians):
            raise ValueError(f"{engine} was not measured")
    return medians


def read_demo(output: str, folder: Path) -> Results:
    """Speed and gaps of the demo's run."""
    line = next((line for line in output.splitlines() if line.startswith("{")), "{}")
    totals = json.loads(line).get("totals")
    if not totals:
        raise ValueError("the demo printed no totals")
    return {shown: round(totals[key], 4) for key, shown in DEMO_TOTALS.items()}


def read_answers(output: str, folder: Path) -> Results:
    """How many answers a server gave, and of how many tokens."""
    found = re.search(r"^(\d+) answers, (\d+) tokens, in ([\d.]+) s$", output, re.M)
    if not found:
        raise ValueError("the server printed no answers")
    return {"answers": int(found[1]), "tokens": int(found[2]), "seconds with its start": float(found[3])}


def serve_part(name: str, *options: str) -> Part:
    """A server with these options, and clients."""
    arguments = ("--", *options) if options else ()
    return Part(name, "scripts.hardware.try_server", "author try-server", arguments, 2, read_answers)


def part_of_tests(name: str, share: float, *arguments: str, words: str = "") -> Part:
    """Tests of the reference: of a day, or those whose names have these words."""
    options = ("--ref", "--all", "--", "-vv", "-rs", *(("-k", words) if words else ()))
    return Part(name, "scripts.learn.test", "test", (*arguments, *options), share, read_tests)


def schedules_part(name: str, engine: str, count: int, *features: str) -> Part:
    """Random schedules by one engine, with some of its features."""
    arguments = ("--ref", "--engine", engine, "--count", str(count), *features)
    return Part(name, "scripts.author.schedules", "author schedules", arguments, 3, read_schedules)


def bench_part(repeats: int = 3) -> Part:
    """Prefill and decode beside mlx-lm."""
    engines = [word for engine in BENCH_ENGINES for word in ("--engine", engine)]
    arguments = (*engines, "--repeats", str(repeats))
    environment = {ACCEPT_BUSY: "1"}
    return Part("speed beside mlx-lm", "benches", "bench", arguments, 3, read_speed, True, environment)


def demo_part(name: str, *arguments: str, **environment: str) -> Part:
    """A run of the demo."""
    words = (*arguments, "--json")
    return Part(name, "scripts.run.demo", "demo", words, 1, read_demo, environment=environment)


PARTS: Sequence[Part] = (
    Part("doctor", "scripts.hardware.doctor", "doctor", (), 6, read_findings),
    part_of_tests("kernels of day 2.3", 5, "--week", "2", "--day", "3"),
    part_of_tests("kernels of day 2.5", 5, "--week", "2", "--day", "5"),
    part_of_tests("kernels of day 3.3", 4, "--week", "3", "--day", "3"),
    part_of_tests("kernels of day 4.1", 5, "--week", "4", "--day", "1"),
    part_of_tests("parts by type", 3, words="right_in_the_type"),
    Part(
        "answers of mlx-lm",
        "scripts.checkpoints.compare_mlx_lm",
        "author compare-mlx-lm",
        (),
        2,
        read_equality,
    ),
    part_of_tests("bits of a row", 4, words="invariant_bits"),
    schedules_part("schedules, week 2", "batch", NUM_SCHEDULES),
    schedules_part("schedules, week 3", "serving", NUM_ENGINE_SCHEDULES),
    schedules_part("schedules, all features", "serving", NUM_FEATURE_SCHEDULES, *FEATURES),
    serve_part("serve"),
    serve_part("serve, 8 bits", "--kv-bits", "8"),
    serve_part("serve, drafts", "--speculation", "draft-model"),
    serve_part("serve, experts", "--model", "qwen3-kjv-moe"),
    serve_part("serve, two ranks", "--ranks", "2"),
    bench_part(),
    demo_part("demo, week 2"),
    demo_part("demo, week 3", "--engine", "serving"),
    demo_part("demo on the CPU", TINY_LLM_DEVICE="cpu"),
)
