"""The commands as a user types them: selection, help, refusals."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperGroup

from scripts.book.commands import command_of, scripts
from scripts.checkpoints.models import load_by_name
from scripts.course import ROOT, load_course
from scripts.learn import test as test_command
from scripts.learn.crashes import Crash, add_crash, read_crashes
from scripts.learn.reset import reset
from scripts.learn.test import select_tests, what_is_next
from scripts.run.run_options import RunOptions
from scripts.run.runs import prompts_of
from scripts.sources.files import read_reference, write
from tests.support.checkpoints import Variant, build, save
from tests.support.commands import run, run_apart
from tests.support.terminals import CTRL_C, Terminal

COMMANDS = {name: module for name, module in scripts().items() if module}
GROUPED = [
    (name, inner)
    for name in COMMANDS
    if isinstance(group := command_of(name), TyperGroup)
    for inner in group.commands
]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example(name: str) -> None:
    result = run(COMMANDS[name], "--help")
    assert result.returncode == 0
    assert f"Example: pdm run {name}" in result.stdout


def test_help_imports_neither_mlx_nor_the_package() -> None:
    code = f"""
import contextlib, io, runpy, sys
for module in {[*COMMANDS.values()]}:
    sys.argv[:] = [module, "--help"]
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        runpy.run_module(module, run_name="__main__")
    found = {{"mlx.core", "numpy", "pytest", "tiny_llm", "tiny_llm_ref"}} & sys.modules.keys()
    assert not found, (module, found)
"""
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(("name", "inner"), GROUPED)
def test_every_command_of_a_group_has_a_line_there_and_help_of_its_own(name: str, inner: str) -> None:
    (line,) = re.findall(rf"^│ {inner} +(.*?) *│$", run(COMMANDS[name], "--help").stdout, re.MULTILINE)
    assert 10 < len(line) < 66
    result = run(COMMANDS[name], inner, "--help")
    assert result.returncode == 0
    assert f"Usage: pdm run {name} {inner} " in result.stdout


@pytest.mark.parametrize(
    ("module", "misspelt", "sentence"),
    [
        ("benches", "contxt", "there is no `pdm run bench contxt`: did you mean context?"),
        ("scripts.author", "state", "there is no `pdm run author state`: did you mean states or starter?"),
        ("scripts.book", "xyz", "there is no `pdm run book xyz`: see `pdm run book --help`"),
    ],
)
def test_a_misspelt_name_is_one_sentence(module: str, misspelt: str, sentence: str) -> None:
    result = run(module, misspelt, "--week", "1")
    assert (result.returncode, result.stdout, result.stderr) == (2, "", f"error: {sentence}\n")


def test_a_task_is_selected_by_its_number_and_a_week_as_all_its_days() -> None:
    assert select_tests(2, 7, 3) == [str(ROOT / "tests" / "days" / "test_week_2_day_7.py"), "--task", "3"]
    names = [Path(path).name for path in select_tests(2, None, None)]
    assert names == [f"test_week_2_day_{day}.py" for day in range(1, 8)]


@pytest.mark.parametrize(
    ("selection", "sentence"),
    [
        ((9, None, None), "there is no week 9"),
        ((1, 8, None), "week 1 has no day 8"),
        ((1, 1, 4), "week 1 day 1 has tasks 1 to 3, not 4"),
        ((None, 2, None), "--day and --task need --week"),
        ((1, None, 2), "--task needs --day"),
    ],
)
def test_what_is_not_there_is_refused(
    selection: tuple[int | None, int | None, int | None], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        select_tests(*selection)


def test_after_a_task_comes_the_next_one_with_its_command() -> None:
    command = "pdm run test --week 2 --day 7 --task 2"
    expected = [f"next: week 2 day 7 task 2, One chunk per call: {command}"]
    assert what_is_next(load_course(), 2, 7, 1, "none") == expected
    assert what_is_next(load_course(), 2, 6, None, "none")[0].startswith(
        "next: week 2 day 7 task 1, Steps and masks"
    )
    assert len(what_is_next(load_course(), 1, 4, None, "none")) == 1
    last = load_course().days[-1]
    of_core = [task.number for task in last.tasks if not task.optional]
    for task in (None, of_core[-1], last.tasks[-1].number):
        lines = what_is_next(load_course(), last.week, last.day, task, "none")
        assert lines == ["how fast is it now? pdm run bench --mine"]


@pytest.mark.parametrize(
    ("options", "is_divided"),
    [
        ({"ref": True}, True),
        ({"ref": True, "week": 1, "day": 1}, True),
        ({"ref": True, "week": 1, "day": 1, "task": 1}, False),
        ({}, False),
    ],
)
def test_more_of_the_reference_than_a_task_is_divided_among_processes(
    options: dict[str, object], is_divided: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []
    monkeypatch.setattr(test_command, "choose_package", lambda reference: None)
    monkeypatch.setattr(test_command, "run_pytest", lambda arguments: given.extend(arguments) or 1)
    with pytest.raises(SystemExit):
        test_command.main(**options)
    assert ("-n" in given) == is_divided


ONE_TASK = ("scripts.learn.test", "--ref", "--week", "1", "--day", "1", "--task", "1", "--")


def test_options_after_two_dashes_reach_pytest_whose_exit_code_comes_back() -> None:
    result = run_apart(*ONE_TASK, "-k", "task_2")  # which --task leaves out
    assert result.returncode == 5  # nothing was selected
    assert "deselected" in result.stdout


def test_tests_that_crash_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for hook, number, sentence, code in (
        ("call", signal.SIGBUS, "the test ended the process with SIGBUS, outside of any kernel in C++.", 1),
        ("call", signal.SIGKILL, "The tests were ended by SIGKILL.", 128 + signal.SIGKILL),
        ("logstart", signal.SIGBUS, "The tests were ended by SIGBUS.", 128 + signal.SIGBUS),
    ):
        crash = f"def pytest_runtest_{hook}():\n    os.kill(os.getpid(), signal.{number.name})\n"
        (tmp_path / "crash.py").write_text(f"import os, signal\n\n{crash}", encoding="utf-8")
        result = run_apart(*ONE_TASK, "-p", "crash")
        assert result.returncode == code
        assert sentence in result.stdout


def test_every_crash_of_a_run_is_kept(tmp_path: Path) -> None:
    crashes = [Crash(test, "SIGSEGV", "swiglu", [("ops.py", 3)]) for test in ("test_1", "test_2")]
    for crash in crashes:
        add_crash(tmp_path, crash)
    assert read_crashes(tmp_path) == crashes


def test_a_kernel_that_crashes_is_named_and_the_other_tasks_are_tested(tmp_path: Path) -> None:
    sources = read_reference()
    kernel = Path("kernels/cpu/swiglu.cpp")
    assert "(output + i," in sources[kernel]
    sources[kernel] = sources[kernel].replace("(output + i,", "(output + i + 1000000000000,")
    write(sources, tmp_path / "tiny_llm")
    path = f"pythonpath={tmp_path} {ROOT}"
    chosen = "rms_norm or swiglu_of or other_numbers_of_axes"
    result = run_apart("scripts.learn.test", "--week", "2", "--day", "5", "--", "-o", path, "-k", chosen)
    assert result.returncode == 1
    report = result.stdout.partition("= FAILURES =")[2]
    assert report.count("test_task_4_") == report.count("test_task_4_swiglu_of") == 1, result.stdout
    assert "The last kernel that ran is swiglu: usually" in report
    assert re.search(r"tiny_llm/kernels/cpu/swiglu\.cpp:\d+\n +KERNEL swiglu\(", report)
    assert "tests/days/test_week_2_day_5.py:" in report
    assert " passed" in report
    assert "Fatal Python error" not in result.stdout + result.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["scripts.run.demo", "--model", "nowhere"], "no checkpoint is called 'nowhere'"),
        (["scripts.run.demo", "--prompts", "nowhere.txt"], "cannot read the prompts in nowhere.txt"),
        (
            ["scripts.run.demo", "--temperature", "-1"],
            "temperature (temp) must be 0 (greedy) or a positive, finite number",
        ),
        (
            ["scripts.run.demo", "--engine", "serving", "--budget", "3"],
            "the budget is 3 and the batch size 4",
        ),
        (["scripts.run.trace", "--model", "nowhere"], "no checkpoint is called 'nowhere'"),
        (["scripts.run.trace", "--out", "nowhere/run.json"], "cannot write nowhere/run.json"),
        (["scripts.run.trace", "--html", "tests"], "cannot write tests: give a file"),
        (["scripts.run.generate", "In", "--top-p", "2"], "top_p must be between 0 and 1"),
        (["scripts.run.generate", ""], "the prompt is empty"),
        (["scripts.run.generate", "--chat", " "], "the message is empty"),
        (["scripts.run.generate", "word " * 3000], "positions"),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_code_2(arguments: list[str], sentence: str) -> None:
    result = run(*arguments)
    assert (result.returncode, result.stdout.strip()) == (2, "")
    (line,) = result.stderr.strip().splitlines()
    assert sentence in line


Served = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def two_prompts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of two short prompts."""
    file = tmp_path_factory.mktemp("demo") / "prompts.txt"
    file.write_text("In the beginning God created the heaven\n\nAnd the LORD spake unto Moses 🌱\n", "utf-8")
    return str(file)


@pytest.fixture(scope="module")
def served(two_prompts: str) -> Served:
    """What the demo says of these in JSON; what several tests look at is computed once."""

    @cache
    def serve(*options: str) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(
            run("scripts.run.demo", "--json", "--prompts", two_prompts, *options).stdout
        )
        return report

    return serve


def column(report: dict[str, Any], key: str) -> list[Any]:
    """A value of each request."""
    return [row[key] for row in report["requests"]]


def computed_by(report: dict[str, Any]) -> list[Any]:
    """What each call of the model computed."""
    return [(event["step"], event["phase"], event["tokens"]) for event in report["events"]]


def write_package(
    folder: Path, unsolved: Collection[str] = (), change: tuple[str, str, str] | None = None
) -> None:
    """Write a learner's package: the reference without the solutions of some tasks, or with another text."""
    sources = read_reference()
    if unsolved:
        sources = reset(sources, load_course(), set(unsolved))
    if change is not None:
        path, before, after = Path(change[0]), *change[1:]
        assert sources[path].count(before) == 1
        sources[path] = sources[path].replace(before, after)
    write(sources, folder / "tiny_llm")


# --- generate ----------------------------------------------------------------------------------------------


def test_generate_completes_standard_input_of_any_characters() -> None:
    text = "In the beginning — 起初 🌱"
    result = run("scripts.run.generate", "-", "--max-tokens", "8", stdin=text)
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.removeprefix(text).split()) >= 4


def test_generate_uses_the_learner_s_package_when_asked(tmp_path: Path) -> None:
    write_package(tmp_path, change=("generation/sampler.py", "mx.argmax(logprobs", "mx.argmin(logprobs"))
    arguments = ("scripts.run.generate", "In the beginning", "--max-tokens", "8")
    mine, reference = run(*arguments, "--mine", folder=tmp_path), run(*arguments)
    assert (mine.returncode, reference.returncode) == (0, 0), mine.stderr + reference.stderr
    assert len(reference.stdout.split()) >= 4
    assert mine.stdout != reference.stdout


@pytest.mark.parametrize(
    ("last", "loop"),
    [
        ("1.5.4", "a given greedy loop. Week 1 day 6"),
        ("1.6.3", "your simple_generate. Week 2 day 1"),
        ("2.1.3", "your simple_generate_with_kv_cache."),
    ],
)
def test_generate_writes_with_what_the_learner_has(last: str, loop: str, tmp_path: Path) -> None:
    write_package(tmp_path, after(last))
    arguments = ("scripts.run.generate", "In the beginning", "--max-tokens", "8")
    mine, reference = run(*arguments, "--mine", folder=tmp_path), run(*arguments)
    assert mine.returncode == 0, mine.stderr
    assert mine.stdout == reference.stdout
    assert mine.stderr.splitlines()[-1].startswith(f"Written by your model with {loop}")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--seed", "1"), "--seed need your sampler (week 1 day 7 task 3: "),
        (
            ("--model", "llama"),
            "yet: week 1 day 5 task 5: ModelConfig.from_dict is not written yet",
        ),
    ],
)
def test_generate_refuses_what_the_learner_has_not(
    options: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    write_package(tmp_path, after("1.5.4"))
    save(Variant("llama", "llama"), build(Variant("llama", "llama")), tmp_path / "llama")
    result = run("scripts.run.generate", "In", *options, "--mine", folder=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert sentence in result.stderr.splitlines()[-1]


def after(last: str) -> set[str]:
    """The ids of all tasks behind one."""
    ids = [task.id for day in load_course().days for task in day.tasks]
    return set(ids[ids.index(last) + 1 :])


# --- the demo ----------------------------------------------------------------------------------------------


def test_the_demo_s_own_prompts_are_eight_and_one_is_long() -> None:
    _, tokenizer = load_by_name(RunOptions().model)
    lengths = [len(tokenizer.encode(prompt)) for prompt in prompts_of(RunOptions())]
    assert len(lengths) == 8
    assert max(lengths) >= 600


def test_demo_prints_its_figures_alone_where_there_is_no_terminal(two_prompts: str) -> None:
    result = run_apart("scripts.run.demo", "--prompts", two_prompts, "--max-tokens", "5")
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == "2 requests to qwen3-kjv-4m, served by the reference, tiny_llm_ref"
    assert [line.split()[0] for line in lines[2:5]] == ["request", "0", "1"]
    assert [line for line in lines if line in ("whole prompts", "chunks of 64")] == [
        "whole prompts",
        "chunks of 64",
    ]
    assert len(lines) == 1 + 4 + 2 * (4 + 2) + 2, "a title, a table, two runs, the scale of time"
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize(
    ("last", "missing"), [("2.7.7", "1, Text as it comes"), ("3.7.2", "3, A thread for the engine")]
)
def test_serve_refuses_what_the_learner_has_not(last: str, missing: str, tmp_path: Path) -> None:
    write_package(tmp_path, after(last))
    result = run("scripts.run.serve", "--port", "0", "--mine", folder=tmp_path)
    sentence = f"error: your package cannot run yet: week 3 day 7 task {missing}, is not written yet\n"
    assert (result.returncode, result.stdout, result.stderr) == (2, "", sentence)


def test_demo_and_trace_with_the_learner_s_package_say_so(tmp_path: Path, two_prompts: str) -> None:
    write_package(tmp_path, {"3.1.3"})  # which only the engine needs
    options = ("--prompts", two_prompts, "--max-tokens", "1", "--mine")
    result = run("scripts.run.demo", *options, folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("2 requests to qwen3-kjv-4m, served by your tiny_llm\n")
    assert "gap between tokens" in result.stdout
    result = run("scripts.run.trace", *options, folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["package"] == "tiny_llm"


@pytest.mark.parametrize(
    ("command", "options", "unsolved", "symbol"),
    [
        ("demo", (), "2.7.2", "Request.try_prefill"),
        ("demo", ("--engine", "serving"), "3.1.3", "Scheduler.schedule"),
        ("trace", (), "2.7.2", "Request.try_prefill"),
        ("generate", ("In the beginning",), "1.5.3", "Qwen3TransformerBlock.__init__"),
    ],
)
def test_what_is_not_written_yet_is_said_in_a_sentence(
    command: str, options: tuple[str, ...], unsolved: str, symbol: str, tmp_path: Path
) -> None:
    write_package(tmp_path, {unsolved})
    result = run(f"scripts.run.{command}", *options, "--mine", folder=tmp_path)
    where = "week {} day {} task {}".format(*unsolved.split("."))
    assert result.returncode == 2
    sentence = rf"error: your package cannot \w+ yet: {where}: {symbol} is not written yet"
    assert re.fullmatch(sentence, result.stderr.splitlines()[-1])
    assert not (tmp_path / "trace.json").exists()


def test_demo_names_the_learner_s_line_of_a_value_error(tmp_path: Path) -> None:
    file = "batching/batch_generator.py"
    write_package(tmp_path, change=(file, "request.try_prefill()", 'raise ValueError("seven")'))
    result = run("scripts.run.demo", "--mine", folder=tmp_path)
    assert result.returncode == 2
    assert re.fullmatch(rf"error: seven \(tiny_llm/{file}:\d+\)", result.stderr.splitlines()[-1])


def test_demo_of_the_first_day_needs_no_blocks(tmp_path: Path, two_prompts: str) -> None:
    days = [day for day in load_course().days if (day.week, day.day) > (3, 1)]
    write_package(tmp_path, {task.id for day in days for task in day.tasks})
    options = ("--engine", "serving", "--prompts", two_prompts, "--max-tokens", "1", "--mine")
    assert run("scripts.run.demo", *options, "--blocks", "0", folder=tmp_path).returncode == 0
    result = run("scripts.run.demo", *options, folder=tmp_path)
    assert result.returncode == 2
    assert "--blocks 0 serves without blocks, as on day 3.1" in result.stderr


IN_CHUNKS = ("--prefill-step", "5", "--max-tokens", "6")
BY_ENGINE = ("--engine", "serving", "--budget", "7", "--max-tokens", "6")


def test_demo_prints_json_for_programs(served: Served) -> None:
    report = served(*IN_CHUNKS)
    assert len(report["requests"]) == 2
    assert set(column(report, "finish_reason")) <= {"stop", "length"}
    computed = [event["tokens"] for event in report["events"] if event["phase"] == "prefill"]
    assert sum(sum(tokens.values()) for tokens in computed) == sum(column(report, "prompt_tokens"))
    assert max(sum(tokens.values()) for tokens in computed) == 5
    assert report["totals"]["prefill_chunks"] > 2


@pytest.mark.parametrize(
    ("options", "num_chunks"),
    [
        (("--max-tokens", "6", "--no-chunking"), 2),
        (("--max-tokens", "6", "--engine", "serving", "--no-chunking"), 2),
        (BY_ENGINE, None),
    ],
    ids=["phases", "engine", "engine in chunks"],
)
def test_however_the_demo_serves_the_answers_are_the_same(
    options: tuple[str, ...], num_chunks: int | None, served: Served
) -> None:
    report, expected = served(*options), served(*IN_CHUNKS)
    for key in ("token_ids", "prompt_tokens", "finish_reason"):
        assert column(report, key) == column(expected, key)
    assert report["totals"]["prompt_tokens"] == sum(column(report, "prompt_tokens"))
    assert num_chunks in (None, report["totals"]["prefill_chunks"])


def test_a_step_of_the_engine_takes_its_budget_at_most(served: Served) -> None:
    report = served(*BY_ENGINE)
    assert (report["settings"]["engine"], report["settings"]["budget"]) == ("serving", 7)
    tokens = [0] * report["totals"]["steps"]
    for event in report["events"]:
        tokens[event["step"]] += sum(event["tokens"].values())
    assert max(tokens) == 7


ROUNDS = ("--engine", "serving", "--rounds", "2", "--max-tokens", "12")
SMALL_POOL = (*ROUNDS, "--blocks", "11", "--block-size", "4", "--overcommit", "--batch-size", "3")


def test_demo_by_the_engine_gives_the_same_answers_from_a_small_pool(served: Served) -> None:
    small, dense = served(*SMALL_POOL), served(*ROUNDS, "--blocks", "0")
    answers = column(small, "token_ids")
    assert answers == column(dense, "token_ids")
    assert answers[:2] == answers[2:], "greedy, so both rounds say the same"
    kinds = [event["kind"] for event in small["pool_events"]]
    assert kinds.count("preemption") == small["totals"]["preemptions"] > 0
    found = sum(event["tokens"] for event in small["pool_events"] if event["kind"] == "hit")
    assert found == small["totals"]["hit_tokens"] > 0
    assert len(small["blocks"]) == small["totals"]["steps"]
    assert all(sum(counts.values()) == 11 for counts in small["blocks"])
    assert small["blocks"][-1]["used"] == 0
    assert "blocks" not in dense
    computed = sum(sum(e["tokens"].values()) for e in small["events"] if e["phase"] == "prefill")
    assert computed == small["totals"]["prefill_tokens"]


def test_every_event_of_the_engine_says_which_tokens_and_who_got_one(served: Served) -> None:
    report = served(*SMALL_POOL)
    num_computed, num_sampled = [0] * 4, [0] * 4
    pool_events = {(each["step"], each["request"], each["kind"]): each for each in report["pool_events"]}
    step = -1
    for event in report["events"]:
        if event["step"] != step:
            step = event["step"]
            for index in range(4):
                if (step, index, "preemption") in pool_events:
                    assert pool_events[step, index, "preemption"]["tokens"] == num_computed[index]
                    num_computed[index] = 0
                if (step, index, "hit") in pool_events:
                    assert num_computed[index] == 0
                    num_computed[index] = pool_events[step, index, "hit"]["tokens"]
        for index, num_tokens in event["tokens"].items():
            assert event["first"][index] == num_computed[int(index)]
            num_computed[int(index)] += num_tokens
        for index in event["sampled"]:
            num_sampled[index] += 1
    assert num_sampled == column(report, "output_tokens")


def test_demo_without_prefix_caching_computes_every_prompt(served: Served) -> None:
    one_by_one = (*ROUNDS, "--batch-size", "1", "--block-size", "4")
    assert served(*one_by_one)["totals"]["hit_tokens"] > 0
    totals = served(*one_by_one, "--no-prefix-caching")["totals"]
    assert totals["hit_tokens"] == 0
    assert totals["prefill_tokens"] == totals["prompt_tokens"]


def test_demo_by_the_engine_shows_blocks_and_a_timeline(two_prompts: str) -> None:
    result = run("scripts.run.demo", "--prompts", two_prompts, *SMALL_POOL, "--budget", "7")
    assert result.returncode == 0, result.stderr
    for line in (
        r" 3 \d+ 12 .* length \d+ prompt tokens in",
        r"gap between tokens: p99",
        r"of 4: 0 used, \d+ cached, \d+ free; \d+ of \d+ tokens found in them; \d preemptions?; most in use",
    ):
        assert re.search(line, " ".join(result.stdout.split())), line


DEMO = "import runpy\nrunpy.run_module('scripts.run.demo', run_name='__main__', alter_sys=True)"


@pytest.fixture
def watched(two_prompts: str, request: pytest.FixtureRequest) -> Iterator[Terminal]:
    """The demo of two prompts in a terminal, with more options."""
    terminal = Terminal(DEMO, "--prompts", two_prompts, "--max-tokens", "3", *request.param)
    yield terminal
    terminal.close()


@pytest.mark.parametrize("watched", [()], indirect=True)
@pytest.mark.parametrize("moment", ["loading", "slowed down"])
def test_ctrl_c_leaves_one_word_of_the_demo(watched: Terminal, moment: str) -> None:
    watched.wait_for(moment)
    watched.press(CTRL_C)
    assert watched.exit_code() == 130
    assert watched.screen() == ["interrupted"]


@pytest.mark.parametrize("watched", [("--real-time",)], indirect=True)
def test_the_demo_ends_with_its_last_picture_and_the_figures(watched: Terminal) -> None:
    assert watched.exit_code() == 0
    screen = watched.screen()
    assert screen[0] == "2 requests to qwen3-kjv-4m, served by the reference, tiny_llm_ref"
    assert screen[1].endswith(" s, at the speed of the run")
    assert [line.split()[:1] for line in screen[2:8]] == [
        [word] for word in ("whole", "0", "1", "chunks", "0", "1")
    ]
    assert screen[11].split()[:3] == ["request", "prompt", "output"]
    assert screen[-1].startswith("gap between tokens")


@pytest.mark.parametrize("watched", [("--temperature", "-1")], indirect=True)
def test_an_error_in_a_terminal_is_one_sentence_too(watched: Terminal) -> None:
    assert watched.exit_code() == 2
    (line,) = watched.screen()
    assert line.startswith("error: temperature (temp) must be 0")


def test_demo_refuses_a_request_that_the_pool_cannot_hold(two_prompts: str) -> None:
    result = run("scripts.run.demo", "--engine", "serving", "--prompts", two_prompts, "--blocks", "1")
    assert result.returncode == 2
    assert "make the pool larger" in result.stderr
    assert "Traceback" not in result.stderr


# --- trace -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [IN_CHUNKS, BY_ENGINE], ids=["phases", "engine"])
def test_trace_writes_what_the_demo_computes(
    options: tuple[str, ...], served: Served, two_prompts: str, tmp_path: Path
) -> None:
    file = tmp_path / "run.json"
    result = run("scripts.run.trace", "--out", str(file), "--prompts", two_prompts, *options)
    assert result.returncode == 0, result.stderr
    assert "open book/viz/timeline.html in a browser and drop run.json on it" in result.stdout
    trace, report = json.loads(file.read_text(encoding="utf-8")), served(*options)
    assert trace["package"] == "tiny_llm_ref"
    assert trace.keys() == {*report.keys(), "package"}
    assert computed_by(trace) == computed_by(report)
    assert trace["settings"] == report["settings"]


def test_trace_makes_one_page_that_needs_no_other_file(tmp_path: Path, two_prompts: str) -> None:
    options = ("--prompts", two_prompts, "--max-tokens", "2")
    result = run("scripts.run.trace", "--html", str(tmp_path / "run.html"), *options)
    assert result.returncode == 0, result.stderr
    page = (tmp_path / "run.html").read_text(encoding="utf-8")
    assert re.findall(r'<(?:script|link)[^>]*(?:src|href)="([^"]*)"', page) == []
    assert "var TinyRun = {" in page
