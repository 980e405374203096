"""A learner of the core alone: what chapters show runs with their package, without optional tasks."""

import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from scripts.book.commands import SETTING, arguments_of
from scripts.book.segments import Fence, split_page
from scripts.book.shown import commands_of
from scripts.course import ROOT, Day, load_course
from scripts.hardware.try_server import answer, fetch, served
from scripts.learn.catch_up import task_ids_up_to
from scripts.packages import MINE
from scripts.sources.chunks import HOLE
from scripts.sources.files import Sources, write
from scripts.sources.render import render
from tests.support.commands import use_own_memory
from tests.tools.test_bench_mine import SHORT

COURSE = load_course()
NUM_STEPS = 110
"""More than the steps after which anything is learned from them: the server fits costs after 64."""
SERVERS = [
    "--speculation draft-model",
    "--speculation lookup --ranks 2 --kv-bits 8",
    "--model qwen3-kjv-moe --max-num-batched-tokens 16 --kv-bits 4",
]
STOP = re.compile(r"stops at line \d+: (?!.* is missing, since )(.*)")
"""What a block stops at, but for one that needs what another would have defined."""


@cache
def core_after(week: int, day: int) -> Sources:
    """The package of a learner who solves what is core."""
    return render(task_ids_up_to(COURSE, f"w{week}d{day}", "none"), COURSE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the package goes, and where commands find it."""
    use_own_memory(tmp_path / "cache", monkeypatch)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TINY_LLM_DEVICE", "cpu")
    monkeypatch.setenv("COLUMNS", "400")
    for name in ("models", "book"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def page_of(day: Day) -> str:
    """The name of a day's chapter."""
    return f"week-{day.week}/day-{day.day}"


def own_commands(day: Day) -> list[str]:
    """What runs a chapter's Python, and what it shows with --mine; a benchmark as short as it can be."""
    text = (ROOT / "book/src" / page_of(day)).with_suffix(".md").read_text(encoding="utf-8")
    blocks = [f"pdm run book run {page_of(day)} {MINE}"] if "```python" in text else []
    fences = [each for each in split_page(text) if isinstance(each, Fence)]
    shown = [each.command for fence in fences for each in commands_of(fence) if MINE in each.command]
    return list(dict.fromkeys([*blocks, *map(shortened, shown)]))


def shortened(command: str) -> str:
    """A command that takes a moment."""
    if bench := re.search("pdm run bench ([a-z]+)", command):
        return f"{command} {SHORT[bench[1]]}"
    return command


def check_serves(options: list[str], folder: Path) -> None:
    """Two clients get all of their tokens, and the server ends as it should."""
    with served(options, folder / "log", folder) as url:
        model = fetch(f"{url}/v1/models")["data"][0]["id"]
        for prompt in ("In the beginning", "And God said unto"):
            body = {"prompt": prompt, "ignore_eos": True, "max_tokens": NUM_STEPS}
            assert answer(url, model, body)["usage"]["completion_tokens"] == NUM_STEPS


@pytest.mark.sampled(10)
@pytest.mark.parametrize("day", COURSE.days, ids=page_of)
def test_what_a_chapter_shows_runs_with_the_core(day: Day, folder: Path) -> None:
    write(core_after(day.week, day.day), folder / "tiny_llm")
    for command in own_commands(day):
        module, *options = arguments_of(command)[1:]
        if module == "scripts.run.serve":
            if "--replicas" not in options:  # whose router is installed on its own
                check_serves(options, folder)
            continue
        settings = dict(word.split("=", 1) for word in shlex.split(command) if SETTING.match(word))
        result = subprocess.run(
            [sys.executable, "-m", module, *options],
            cwd=folder,
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            encoding="utf-8",
        )
        if module == "scripts.book":  # a block may be about what is optional today or what comes later
            stops = STOP.findall(result.stdout)
            assert stops or result.returncode == 0, f"{command}: {result.stderr}"
            for sentence in stops:
                hole = HOLE.match(sentence)
                where = (int(hole[1]), int(hole[2])) if hole else (0, 0)
                assert where >= (day.week, day.day), f"{command}: {sentence}"
        else:
            assert result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"


@pytest.mark.sampled(10)
@pytest.mark.parametrize("options", SERVERS)
def test_the_server_goes_on_with_the_core(options: str, folder: Path) -> None:
    last = COURSE.days[-1]
    write(core_after(last.week, last.day), folder / "tiny_llm")
    check_serves([MINE, *options.split()], folder)
