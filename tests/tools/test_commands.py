"""The commands as a user types them: selection, help, refusals."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from typer.core import TyperGroup

from scripts.book.commands import command_of, scripts
from scripts.course import ROOT, load_course
from scripts.learn import test as test_command
from scripts.learn.reset import reset
from scripts.learn.test import select_tests, what_is_next
from scripts.sources.files import read_reference, write
from tests.support.commands import run, run_apart

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


@pytest.mark.parametrize(("name", "inner"), GROUPED, ids=" ".join)
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


def test_a_task_is_selected_by_its_day_and_number() -> None:
    assert select_tests(2, 7, 3) == [str(ROOT / "tests" / "days" / "test_week_2_day_7.py"), "--task", "3"]


def test_a_week_is_all_its_days() -> None:
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
    expected = [f"next: week 2 day 7 task 2, One chunk a call: {command}"]
    assert what_is_next(load_course(), 2, 7, 1) == expected
    assert what_is_next(load_course(), 2, 6, None)[0].startswith("next: week 2 day 7 task 1, Steps and masks")
    last = load_course().days[-1]
    assert what_is_next(load_course(), last.week, last.day, None) == []


@pytest.mark.parametrize(
    ("options", "is_divided"), [({"ref": True}, True), ({"ref": True, "week": 1}, False), ({}, False)]
)
def test_the_whole_suite_of_the_reference_is_divided_among_processes(
    options: dict[str, object], is_divided: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []
    monkeypatch.setattr(test_command, "choose_package", lambda reference: None)
    monkeypatch.setattr(test_command, "run_pytest", lambda arguments: given.extend(arguments) or 1)
    with pytest.raises(SystemExit):
        test_command.main(**options)
    assert ("-n" in given) == is_divided


def test_options_after_two_dashes_reach_pytest() -> None:
    task = ["--ref", "--week", "1", "--day", "1", "--task", "1"]
    result = run_apart("scripts.learn.test", *task, "--", "-k", "no_such_words")
    assert result.returncode == 5  # pytest's own: nothing was selected
    assert "deselected" in result.stdout


def test_the_exit_code_of_a_task_is_pytests() -> None:
    task = ["--ref", "--week", "1", "--day", "1", "--task", "1"]
    assert run_apart("scripts.learn.test", *task).returncode == 0


def test_tests_that_crash_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    crash = "import os, signal\n\ndef pytest_runtest_call(item):\n    os.kill(os.getpid(), signal.SIGSEGV)\n"
    (tmp_path / "crash.py").write_text(crash, encoding="utf-8")
    task = ["--ref", "--week", "1", "--day", "1", "--task", "1"]
    result = run_apart("scripts.learn.test", *task, "--", "-p", "crash")
    assert result.returncode == 128 + signal.SIGSEGV
    assert "ended by SIGSEGV, as when compiled code" in result.stdout
    assert "crash.py" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["scripts.run.demo", "--model", "nowhere"], "no checkpoint is called 'nowhere'"),
        (["scripts.run.demo", "--prompts", "nowhere.txt"], "cannot read the prompts in nowhere.txt"),
        (
            ["scripts.run.demo", "--temperature", "-1"],
            "temperature (temp) must be 0 (greedy) or a positive number",
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


@pytest.fixture
def two_prompts(tmp_path: Path) -> str:
    """A file of two short prompts."""
    file = tmp_path / "prompts.txt"
    file.write_text("In the beginning God created the heaven\nAnd the LORD spake unto Moses\n", "utf-8")
    return str(file)


def test_generate_streams_a_completion() -> None:
    result = run("scripts.run.generate", "In the beginning", "--max-tokens", "8")
    assert result.returncode == 0
    assert len(result.stdout.split()) >= 4


def test_generate_reads_standard_input_and_any_characters() -> None:
    result = run("scripts.run.generate", "-", "--max-tokens", "3", stdin="In the beginning — 起初 🌱")
    assert result.returncode == 0, result.stderr


def test_demo_serves_a_file_of_prompts_as_plain_lines(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("And God said\n\nBlessed are the meek, 🌱\n", encoding="utf-8")
    options = ("--prompts", str(prompts), "--max-tokens", "5", "--prefill-step", "4")
    result = run_apart("scripts.run.demo", *options)
    assert result.returncode == 0, result.stderr
    assert "request 0 prefill 4/" in result.stdout
    assert "request 1 done" in result.stdout
    assert "\x1b" not in result.stdout


def demo_of_package(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The demo with --mine, where tiny_llm is the one in a folder."""
    return run("scripts.run.demo", *options, "--mine", folder=folder)


def test_demo_says_which_package_served(two_prompts: str) -> None:
    result = run("scripts.run.demo", "--prompts", two_prompts, "--max-tokens", "1")
    assert "by the reference, tiny_llm_ref" in result.stdout


def test_demo_serves_with_the_learner_s_package_and_says_so(tmp_path: Path, two_prompts: str) -> None:
    write(read_reference(), tmp_path / "tiny_llm")
    result = demo_of_package(tmp_path, "--prompts", two_prompts, "--max-tokens", "1")
    assert result.returncode == 0, result.stderr
    assert "by your tiny_llm" in result.stdout
    assert "request 1 done" in result.stdout


def test_demo_says_in_a_sentence_what_is_not_written_yet(tmp_path: Path) -> None:
    write(reset(read_reference(), load_course(), {"2.7.2"}), tmp_path / "tiny_llm")
    result = demo_of_package(tmp_path)
    assert result.returncode == 2
    assert result.stderr.strip().splitlines()[-1] == (
        "error: your package cannot serve yet: week 2 day 7 task 2: Request.try_prefill is not written yet"
    )


def test_demo_names_the_learner_s_line_of_a_value_error(tmp_path: Path) -> None:
    sources = read_reference()
    path = Path("batching/batch_generator.py")
    assert sources[path].count("request.try_prefill()") == 1
    sources[path] = sources[path].replace("request.try_prefill()", 'raise ValueError("seven")')
    write(sources, tmp_path / "tiny_llm")
    result = demo_of_package(tmp_path)
    assert result.returncode == 2
    line = result.stderr.strip().splitlines()[-1]
    assert re.fullmatch(r"error: seven \(tiny_llm/batching/batch_generator\.py:\d+\)", line)


def test_generate_uses_the_learner_s_package_when_asked(tmp_path: Path) -> None:
    sources = read_reference()
    path = Path("generation/sampler.py")
    assert "mx.argmax(logprobs" in sources[path]
    sources[path] = sources[path].replace("mx.argmax(logprobs", "mx.argmin(logprobs")
    write(sources, tmp_path / "tiny_llm")
    arguments = ("scripts.run.generate", "In the beginning", "--max-tokens", "8")
    mine, reference = run(*arguments, "--mine", folder=tmp_path), run(*arguments)
    assert (mine.returncode, reference.returncode) == (0, 0), mine.stderr + reference.stderr
    assert mine.stdout != reference.stdout


def test_generate_says_in_a_sentence_what_is_not_written_yet(tmp_path: Path) -> None:
    write(reset(read_reference(), load_course(), {"2.1.3"}), tmp_path / "tiny_llm")
    result = run("scripts.run.generate", "In the beginning", "--mine", folder=tmp_path)
    assert result.returncode == 2
    assert (
        result.stderr.strip()
        .splitlines()[-1]
        .endswith("week 2 day 1 task 3: simple_generate_with_kv_cache is not written yet")
    )


def test_the_demo_s_own_prompts_are_eight_and_one_is_long() -> None:
    from scripts.checkpoints.models import load_by_name
    from scripts.run.run_options import RunOptions
    from scripts.run.runs import prompts_of

    _, tokenizer = load_by_name(RunOptions().model)
    lengths = [len(tokenizer.encode(prompt)) for prompt in prompts_of(RunOptions())]
    assert len(lengths) == 8
    assert max(lengths) >= 600


def test_demo_prints_json_for_programs(two_prompts: str) -> None:
    options = ("--prompts", two_prompts, "--max-tokens", "6", "--prefill-step", "5")
    run_json = json.loads(run("scripts.run.demo", "--json", *options).stdout)
    requests = run_json["requests"]
    assert len(requests) == 2
    assert all(row["finish_reason"] in ("stop", "length") for row in requests)
    computed = [event["tokens"] for event in run_json["events"] if event["phase"] == "prefill"]
    assert sum(sum(tokens.values()) for tokens in computed) == sum(row["prompt_tokens"] for row in requests)
    assert max(sum(tokens.values()) for tokens in computed) == 5


def test_demo_without_chunking_gives_the_same_answers(two_prompts: str) -> None:
    chunked, whole = (
        json.loads(
            run("scripts.run.demo", "--json", "--prompts", two_prompts, "--max-tokens", "6", *option).stdout
        )
        for option in (["--prefill-step", "5"], ["--no-chunking"])
    )
    assert [each["totals"]["prefill_chunks"] > 2 for each in (chunked, whole)] == [True, False]
    answers = [[row["token_ids"] for row in each["requests"]] for each in (chunked, whole)]
    assert answers[0] == answers[1]


def test_demo_by_the_engine_gives_the_same_answers_within_its_budget(two_prompts: str) -> None:
    batch, engine, whole = (
        json.loads(
            run("scripts.run.demo", "--json", "--prompts", two_prompts, "--max-tokens", "6", *options).stdout
        )
        for options in (
            [],
            ["--engine", "serving", "--budget", "7"],
            ["--engine", "serving", "--no-chunking"],
        )
    )
    assert (engine["settings"]["engine"], engine["settings"]["budget"]) == ("serving", 7)
    for other in (engine, whole):
        for key in ("token_ids", "prompt_tokens", "finish_reason"):
            assert [row[key] for row in other["requests"]] == [row[key] for row in batch["requests"]]
        prompts = sum(row["prompt_tokens"] for row in other["requests"])
        assert other["totals"]["prompt_tokens"] == prompts
    tokens = [0] * engine["totals"]["steps"]
    for event in engine["events"]:
        tokens[event["step"]] += sum(event["tokens"].values())
    assert max(tokens) == 7
    assert whole["totals"]["prefill_chunks"] == 2


def test_demo_by_the_engine_shows_states_and_a_timeline(two_prompts: str) -> None:
    options = ("--prompts", two_prompts, "--budget", "7", "--max-tokens", "3")
    result = run("scripts.run.demo", "--engine", "serving", *options)
    assert result.returncode == 0, result.stderr
    assert re.search(r"request 0 prefill 7/\d+", result.stdout)
    assert "request 1 done (length)" in result.stdout
    assert "gap between tokens: p99" in result.stdout


SMALL_POOL = (
    "--blocks",
    "11",
    "--block-size",
    "4",
    "--overcommit",
    "--batch-size",
    "3",
    "--max-tokens",
    "12",
)


def test_demo_by_the_engine_gives_the_same_answers_from_a_small_pool(two_prompts: str) -> None:
    options = ("--json", "--engine", "serving", "--rounds", "2", "--prompts", two_prompts)
    small, dense = (
        json.loads(run("scripts.run.demo", *options, *pool).stdout)
        for pool in (SMALL_POOL, ("--blocks", "0", "--max-tokens", "12"))
    )
    answers = [[row["token_ids"] for row in each["requests"]] for each in (small, dense)]
    assert answers[0] == answers[1]
    assert answers[0][:2] == answers[0][2:], "greedy, so both rounds say the same"
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


def test_every_event_of_the_engine_says_which_tokens_and_who_got_one(two_prompts: str) -> None:
    options = ("--json", "--engine", "serving", "--rounds", "2", "--prompts", two_prompts, *SMALL_POOL)
    report = json.loads(run("scripts.run.demo", *options).stdout)
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
    assert num_sampled == [row["output_tokens"] for row in report["requests"]]


def test_demo_without_prefix_caching_computes_every_prompt(two_prompts: str) -> None:
    options = ("--json", "--engine", "serving", "--rounds", "2", "--prompts", two_prompts)
    report = json.loads(run("scripts.run.demo", *options, "--no-prefix-caching", "--max-tokens", "2").stdout)
    assert report["totals"]["hit_tokens"] == 0
    assert report["totals"]["prefill_tokens"] == report["totals"]["prompt_tokens"]


def test_demo_by_the_engine_says_what_became_of_its_blocks(two_prompts: str) -> None:
    options = ("--engine", "serving", "--rounds", "2", "--prompts", two_prompts, *SMALL_POOL)
    result = run("scripts.run.demo", *options)
    assert result.returncode == 0, result.stderr
    line = (
        r"of 4: 0 used, \d+ cached, \d+ free; \d+ of \d+ tokens found in them; \d preemptions?; most in use"
    )
    assert re.search(line, " ".join(result.stdout.split()))
    assert re.search(r"request \d preempted", result.stdout)


def test_demo_refuses_a_request_that_the_pool_cannot_hold(two_prompts: str) -> None:
    result = run("scripts.run.demo", "--engine", "serving", "--prompts", two_prompts, "--blocks", "1")
    assert result.returncode == 2
    assert "raise the number of blocks" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_picture_of_the_engine_has_a_line_of_its_blocks(two_prompts: str) -> None:
    from rich.console import Console

    from scripts.checkpoints.models import load_by_name
    from scripts.run.run_options import RunOptions
    from scripts.run.run_report import live_picture
    from scripts.run.runs import make_recorder, prompts_of

    options = RunOptions(engine="serving", blocks=50, block_size=4, prompts=Path(two_prompts))
    recorder = make_recorder(options, *load_by_name(options.model), prompts_of(options))
    with recorder.generator:
        recorder.step()
        console = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
        console.print(live_picture(recorder, 100))
    num_tokens = sum(len(request.prompt_ids) for request in recorder.requests)
    used = sum(-(-len(request.prompt_ids) // 4) for request in recorder.requests)
    text = console.export_text()
    assert f"blocks of 4: {used} used, 0 cached, {50 - used} free; 0 of {num_tokens} tokens found" in text


def test_demo_of_the_first_day_needs_no_blocks(tmp_path: Path, two_prompts: str) -> None:
    later = {
        f"3.{day.day}.{task.number}"
        for day in load_course().days
        for task in day.tasks
        if (day.week, day.day) > (3, 1)
    }
    sources = read_reference()
    write(reset(sources, load_course(), later) if later else sources, tmp_path / "tiny_llm")
    options = ("--engine", "serving", "--prompts", two_prompts, "--max-tokens", "1")
    assert demo_of_package(tmp_path, *options, "--blocks", "0").returncode == 0
    result = demo_of_package(tmp_path, *options)
    if later:
        assert result.returncode == 2
        assert "--blocks 0 serves without blocks, as on day 3.1" in result.stderr


def test_demo_by_the_engine_says_what_is_not_written_yet(tmp_path: Path, two_prompts: str) -> None:
    write(reset(read_reference(), load_course(), {"3.1.3"}), tmp_path / "tiny_llm")
    result = demo_of_package(tmp_path, "--engine", "serving")
    assert result.returncode == 2
    assert "week 3 day 1 task 3: Scheduler.schedule is not written yet" in result.stderr
    assert demo_of_package(tmp_path, "--prompts", two_prompts, "--max-tokens", "1").returncode == 0


def test_trace_records_the_engine_too(tmp_path: Path, two_prompts: str) -> None:
    options = ("--engine", "serving", "--prompts", two_prompts, "--budget", "7", "--max-tokens", "3")
    result = run("scripts.run.trace", "--out", str(tmp_path / "run.json"), *options)
    assert result.returncode == 0, result.stderr
    trace = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    demo = json.loads(run("scripts.run.demo", "--json", *options).stdout)
    computed = [[(e["step"], e["phase"], e["tokens"]) for e in each["events"]] for each in (trace, demo)]
    assert computed[0] == computed[1]


def test_trace_writes_what_the_demo_computes(tmp_path: Path, two_prompts: str) -> None:
    options = ("--prompts", two_prompts, "--max-tokens", "4", "--prefill-step", "5")
    result = run("scripts.run.trace", "--out", str(tmp_path / "run.json"), *options)
    assert result.returncode == 0, result.stderr
    assert "open book/viz/timeline.html in a browser and drop run.json on it" in result.stdout
    trace = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    demo = json.loads(run("scripts.run.demo", "--json", *options).stdout)
    assert trace["package"] == "tiny_llm_ref"
    assert trace.keys() == {*demo.keys(), "package"}
    computed = [[(e["step"], e["phase"], e["tokens"]) for e in each["events"]] for each in (trace, demo)]
    assert computed[0] == computed[1]
    assert trace["settings"] == demo["settings"]


def test_trace_of_the_learner_s_package_says_so(tmp_path: Path, two_prompts: str) -> None:
    write(read_reference(), tmp_path / "tiny_llm")
    result = run(
        "scripts.run.trace", "--prompts", two_prompts, "--max-tokens", "1", "--mine", folder=tmp_path
    )
    assert result.returncode == 0, result.stderr
    assert json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["package"] == "tiny_llm"


def test_trace_says_in_a_sentence_what_is_not_written_yet(tmp_path: Path) -> None:
    write(reset(read_reference(), load_course(), {"2.7.2"}), tmp_path / "tiny_llm")
    result = run("scripts.run.trace", "--mine", folder=tmp_path)
    assert result.returncode == 2
    assert "week 2 day 7 task 2: Request.try_prefill is not written yet" in result.stderr
    assert not (tmp_path / "trace.json").exists()


def test_trace_makes_one_page_that_needs_no_other_file(tmp_path: Path, two_prompts: str) -> None:
    options = ("--prompts", two_prompts, "--max-tokens", "2")
    result = run("scripts.run.trace", "--html", str(tmp_path / "run.html"), *options)
    assert result.returncode == 0, result.stderr
    page = (tmp_path / "run.html").read_text(encoding="utf-8")
    assert re.findall(r'<(?:script|link)[^>]*(?:src|href)="([^"]*)"', page) == []
    assert "var TinyRun = {" in page
