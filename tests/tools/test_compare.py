"""`pdm run compare`: what it says of equal, wrong, unwritten and broken functions, and of two runs."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import mlx.core as mx
import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from scripts.author.wrong import load_bank
from scripts.compare import costs
from scripts.compare.__main__ import main
from scripts.compare.cases import CASES, cases_of
from scripts.compare.comparison import PARTS_OF_A_RUN
from scripts.compare.differences import first_difference
from scripts.compare.inputs import normal
from scripts.compare.library import home_of
from scripts.compare.report import LONGEST_NAME
from scripts.course import ROOT, Day, load_course
from scripts.learn.catch_up import catch_up, task_ids_up_to
from scripts.sources.files import REFERENCE, Sources, read_reference, write
from scripts.sources.render import rendered
from scripts.sources.symbols import Package

pytestmark = pytest.mark.sampled(3, "scripts/compare/")
COURSE = load_course()
LINEAR = "    product = x @ w.T\n    return product if bias is None else product + bias\n"


def compare(package: Path, day: str, *arguments: str) -> Result:
    """The command in this process, for a day written as 1.1, with one timed run of each case."""
    app = typer.Typer()
    app.command()(main)
    week, number = day.split(".")
    options = ["--week", week, "--day", number, "--package", str(package), "--repeats", "1"]
    return CliRunner().invoke(app, [*options, *arguments])


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return tmp_path / "tiny_llm"


def write_changed(package: Path, file: str, find: str, replace: str, sources: Sources | None = None) -> None:
    """The reference, or other sources, with one text replaced by another."""
    sources = dict(sources or read_reference())
    assert sources[Path(file)].count(find) == 1
    sources[Path(file)] = sources[Path(file)].replace(find, replace)
    write(sources, package)


def words(result: Result) -> str:
    """What was printed, on one line."""
    assert result.stderr == ""
    assert "\x1b" not in result.stdout
    return " ".join(result.stdout.split())


# the cases


TIMED = [(1, 1), (2, 6), (3, 3), (4, 1)]  # of the others the results alone are compared


@pytest.mark.sampled(4, "scripts/compare/")
@pytest.mark.parametrize("day", COURSE.days, ids=lambda day: f"w{day.week}d{day.day}")
def test_the_reference_is_equal_to_itself(day: Day, monkeypatch: pytest.MonkeyPatch) -> None:
    if (day.week, day.day) not in TIMED:
        monkeypatch.setattr(costs, "measure", lambda runs, repeats: (costs.Cost(1.0, 1),) * 2)
    result = compare(REFERENCE, f"{day.week}.{day.day}")
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    num_rows = sum(len(cases_of(symbol)) for task in day.tasks for symbol in task.symbols)
    num_rows += any(symbol in PARTS_OF_A_RUN for task in day.tasks for symbol in task.symbols)
    assert f"{num_rows} of {num_rows} equal" in result.stdout
    assert all(len(line) <= 80 for line in result.stdout.splitlines())


def test_every_case_means_one_symbol_and_has_a_name_that_fits() -> None:
    symbols = {symbol for day in COURSE.days for task in day.tasks for symbol in task.symbols}
    assert symbols.issuperset(PARTS_OF_A_RUN)
    for case in CASES:
        assert sum(map(case.is_of, symbols)) == 1, case.symbol
        assert 0 < len(case.name) < LONGEST_NAME
    assert len({(case.symbol, case.name) for case in CASES}) == len(CASES)


@pytest.mark.parametrize("number", [0, 2])
def test_a_name_that_does_not_mean_one_function_is_refused(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for home in [f"kernel_runtime.made_up_{index}" for index in range(number)]:
        module = ModuleType(home)
        module.ambiguous = type("ambiguous", (), {"__module__": home})  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, home, module)
    with pytest.raises(AttributeError, match=f"^{number} modules of the reference define ambiguous: "):
        home_of("ambiguous")


def test_inputs_are_not_changed_by_who_uses_them() -> None:
    mine = normal(3, 5)
    mine += 1
    mine[0] = 7
    assert first_difference(normal(3, 5) + 1, mine) is not None
    assert mx.array_equal(normal(3, 5), mx.random.normal((3, 5), key=mx.random.key(0)))


def test_the_ratio_is_your_time_by_the_references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "measure", lambda runs, repeats: (costs.Cost(3.0, 1), costs.Cost(2.0, 1)))
    result = compare(REFERENCE, "2.3", "--task", "2")
    assert re.findall(r"equal .* (\d+\.\d)x ", result.stdout) == ["1.5", "1.5"], result.stdout


def test_each_side_has_a_time_of_its_own() -> None:
    def mine() -> mx.array:
        time.sleep(0.05)
        return normal(3)

    def reference() -> mx.array:
        return normal(3)

    for place, runs in enumerate(((mine, reference), (reference, mine))):
        assert costs.measure(runs, 3)[place].seconds >= 0.05


# what differs


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("1.1.1 softmax-always-last-axis", "Along the first axis differs"),
        ("2.7.1 mask-forgets-the-start", r"differs at \[0, 1\]: yours -inf, reference 0 \(.* infinite"),
        ("2.6.1 slot-never-cleared", r"cut short ValueError: .* \(.*, line \d+\)"),
    ],
)
def test_a_wrong_solution_is_reported_with_its_place(name: str, sentence: str, package: Path) -> None:
    solution = next(solution for solution in load_bank(COURSE.days) if solution.id == name)
    write(dict(solution.run(Package(read_reference())).sources), package)
    result = compare(package, name.rpartition(".")[0], "--task", str(solution.task))
    assert result.exit_code == 1
    assert re.search(sentence, words(result)), result.stdout
    day = f"--week {solution.day.week} --day {solution.day.day} --task {solution.task}"
    assert result.stdout.strip().endswith(f"pdm run test {day}")


def test_a_difference_is_told_by_the_name_of_what_differs(package: Path) -> None:
    find = "        self._lengths = [length + L for length in self._lengths]\n"
    write_changed(package, "model/dense_kv_cache.py", find, "")
    result = compare(package, "2.6", "--task", "2")
    assert re.search(r"differs in lengths at \[0\]: yours 1031, reference 1051", words(result)), result.stdout


def test_another_shape_comes_before_another_value(package: Path) -> None:
    write_changed(package, "ops/basics.py", LINEAR, "    return 2 * (x @ w.T).T\n")
    result = compare(package, "1.1", "--task", "1")
    assert result.exit_code == 1
    assert "With a bias shape" in words(result)
    assert "shape [509, 61] instead of [61, 509]" in words(result)
    assert "3 of 4 equal" in words(result)


@pytest.mark.parametrize(
    ("yours", "reference", "sentence"),
    [
        ([1, 2], (1, 2), None),
        ([1, 3], [1, 2], "differs at [1]: yours 3, reference 2"),
        ([1], [1, 2], "1 item instead of 2, equal so far"),
        ([3, 4, 5], [1, 2], "3 items instead of 2; differs at [0]: yours 3, reference 1"),
        ({"a": 1}, {"a": 1, "b": 2}, "1 item instead of 2, equal so far"),
        ({"a": {"b": [1, "x"]}}, {"a": {"b": [1, "y"]}}, "differs in a.b at [1] at character 0: yours 'x', "),
        ("abc", "abcd", "differs at character 3: yours the end, reference 'd'"),
        (None, 1, "None instead of an int, 1"),
        (True, 1, "a bool, True, instead of an int, 1"),
        (1.0, 1.0 + 1e-9, None),
        (1.0, 1.001, "differs: yours 1, reference 1.001"),
        (float("nan"), float("nan"), None),
        (mx.array(3), 3, "an mx.array instead of an int, 3"),
        (mx.array([1, 2]), mx.array([1, 2], mx.uint32), None),
        (mx.array([1.0]), mx.array([1]), "type mlx.core.float32 instead of mlx.core.int32"),
        (mx.array([1.0], mx.float16), mx.array([1.0]), "type mlx.core.float16 instead of mlx.core.float32"),
        (mx.array([-mx.inf, 1]), mx.array([-mx.inf, 1.00001]), None),
        (mx.array([[1, 2], [3, 5]]), mx.array([[1, 2], [3, 4]]), "differs at [1, 1]: yours 5, reference 4 ("),
        (mx.array([mx.nan, 1]), mx.array([0.0, 1]), "differs at [0]: yours nan, reference 0 (largest differ"),
        (mx.array([100.0, 1.005]), mx.array([100.0, 1]), None),
        (mx.array([100.0, 1.02]), mx.array([100.0, 1]), "differs at [1]: yours 1.02, reference 1 ("),
        (mx.zeros((0, 3)), mx.zeros((0, 3)), None),
        (mx.zeros((2, 3)), mx.zeros((3, 2)), "shape [2, 3] instead of [3, 2]"),
    ],
)
def test_the_first_difference_has_a_sentence(yours: object, reference: object, sentence: str | None) -> None:
    found = first_difference(yours, reference)
    if sentence is None or found is None:
        assert sentence == (found and found.sentence)
    else:
        assert found.sentence.startswith(sentence)


# what is not written, or breaks


def test_holes_are_not_written_yet_and_nothing_else_fails(package: Path) -> None:
    write(rendered((), COURSE), package)
    result = compare(package, "2.7")
    assert result.exit_code == 1
    assert words(result).count("not written yet") == 4  # two symbols, the run, the sum
    assert "2 not written yet its tests say more: pdm run test --week 2 --day 7 --task 1" in words(result)
    assert "equal" not in words(result)
    result = compare(package, "1.1", "--task", "3")
    assert "SimpleMultiHeadAttention not written yet: __init__, __call__" in words(result)


def test_one_hole_does_not_keep_the_others_from_being_compared(package: Path) -> None:
    hole = '    raise NotImplementedError("week 1 day 1 task 1: linear is not written yet")\n'
    write_changed(package, "ops/basics.py", LINEAR, hole)
    result = compare(package, "1.1")
    assert result.exit_code == 1
    assert "5 of 5 equal, 1 not written yet" in words(result)


def test_what_the_course_has_and_the_package_lacks_is_not_written_yet(package: Path) -> None:
    sources = read_reference()
    del sources[Path("model/mlp.py")]
    path = Path("ops/norm.py")
    sources[path] = sources[path].partition("class RMSNorm")[0]
    write(sources, package)
    result = compare(package, "1.4")
    assert "RMSNorm not written yet: __init__, __call__" in words(result)
    assert "Qwen3MLP not written yet: __init__, __call__" in words(result)
    assert "1 of 1 equal, 2 not written yet" in words(result)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("    return {}['key']\n", "KeyError: 'key' ({}/ops/basics.py, line {})"),
        ("    raise SystemExit\n", "SystemExit ({}/ops/basics.py, line {})"),
        ("    raise GeneratorExit('enough')\n", "GeneratorExit: enough ({}/ops/basics.py, line {})"),
        ("    raise type('Odd', (BaseException,), {'__str__': 1})\n", "Odd ({}/ops/basics.py, line {})"),
        ("    return linear(x, w, bias)\n", "RecursionError: maximum recursion depth exceeded"),
        ("    return x @ w\n", "ValueError: [matmul] "),
        ("    return None\n", "None instead of an mx.array"),
    ],
)
def test_whatever_is_raised_is_one_sentence_with_the_learners_line(
    body: str, sentence: str, package: Path
) -> None:
    sources = rendered((), COURSE)  # with softmax above it, whose hole is filled before it is compared
    hole = '    raise NotImplementedError("week 1 day 1 task 1: linear is not written yet")\n'
    write_changed(package, "ops/basics.py", hole, f"    x.shape\n{body}", sources)
    lines = (package / "ops/basics.py").read_text().splitlines()
    result = compare(package, "1.1", "--task", "1")
    assert result.exit_code == 1
    assert sentence.format(package, lines.index(body.strip("\n")) + 1) in words(result)
    assert "Traceback" not in result.output


def test_a_hole_behind_other_code_is_still_a_hole(package: Path) -> None:
    hole = '    raise NotImplementedError("week 1 day 1 task 1: linear is not written yet")\n'
    write_changed(package, "ops/basics.py", LINEAR, f"    product = x @ w.T\n{hole}")
    result = compare(package, "1.1", "--task", "1")
    assert "With a bias hole week 1 day 1 task 1: linear is not written yet" in words(result)


def test_what_never_ends_is_given_up(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "SECONDS_TO_END", 0.5)
    write_changed(package, "ops/basics.py", LINEAR, "    while True:\n        pass\n")
    result = compare(package, "1.1", "--task", "1")
    assert result.exit_code == 1
    sentence = r"no end still running after 0.5 s: a loop that makes no progress\? In \S+basics.py, line \d+"
    assert re.search(sentence, words(result))


def test_what_waits_forever_is_given_up(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "SECONDS_TO_END", 0.05)
    write_changed(package, "ops/basics.py", LINEAR, "    import threading\n    threading.Event().wait()\n")
    result = compare(package, "1.1", "--task", "1")
    assert re.search(r"no end still waiting after 1.5 s In \S+basics.py, line \d+", words(result))


def test_ctrl_c_ends_with_one_line(package: Path) -> None:
    write_changed(package, "ops/basics.py", LINEAR, "    while True:\n        pass\n")
    options = ["--week", "1", "--day", "1", "--repeats", "1", "--package", str(package)]
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "scripts.compare", *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while " linear" not in process.stdout.readline():
        assert process.poll() is None
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate()
    assert (process.returncode, error) == (130, "interrupted\n")


def test_what_the_learner_prints_stays_out_of_the_table(package: Path) -> None:
    write_changed(package, "ops/basics.py", LINEAR, f"    print('here')\n{LINEAR}")
    result = compare(package, "1.1", "--task", "1")
    assert (result.exit_code, "here" in result.output) == (0, False)


def test_the_package_that_was_there_is_there_again(package: Path) -> None:
    before = {name: module for name, module in sys.modules.items() if name.startswith("tiny_llm.")}
    write(read_reference(), package)
    compare(package, "1.4")
    assert before == {name: module for name, module in sys.modules.items() if name.startswith("tiny_llm.")}


# whole runs


def figures(result: Result, name: str) -> list[str]:
    """The figures of a row of the whole run."""
    return next(line.split()[-2:] for line in result.stdout.splitlines() if line.strip().startswith(name))


def timelines(result: Result) -> list[list[str]]:
    """The rows of yours, then of the reference's."""
    rows = re.findall(r"^ {1,2}(\d) (.*)$", result.stdout.partition("\n yours\n")[2], re.M)
    return [[cells for _, cells in rows[:4]], [cells for _, cells in rows[4:]]]


def test_a_run_shows_counts_and_both_timelines_on_one_scale(package: Path) -> None:
    find = "self.prompt_ids[self.offset : self.offset + self.prefill_max_step]"
    write_changed(package, "batching/request.py", find, "self.prompt_ids[self.offset :]")
    result = compare(package, "2.7", "--task", "2")
    assert result.exit_code == 1
    yours, reference = map(int, figures(result, "model calls"))
    assert yours < reference
    assert len(set(figures(result, "tokens computed"))) == 1
    assert "answers equal for all 4 requests" in words(result)
    assert [len(rows) for rows in timelines(result)] == [4, 4]
    assert all(set(cells) <= set(" █•") and cells.strip() for rows in timelines(result) for cells in rows)
    assert result.stdout.count("\n    0 s ") == 1


def test_a_run_on_day_6_takes_the_chunks_of_day_7_from_the_reference(package: Path) -> None:
    write(catch_up(rendered((), COURSE), COURSE, task_ids_up_to(COURSE, "w2d6")), package)
    result = compare(package, "2.6", "--task", "4")
    assert result.exit_code == 0, result.output
    note = "not written yet, and so the reference's: Request.try_prefill, BatchGenerator.prefill_phase"
    assert note in words(result)
    assert "answers equal for all 4 requests" in words(result)


def test_a_run_with_other_answers_says_which_token(package: Path) -> None:
    find = "next_tokens = mx.array([[request.next_token] for _, request in active])"
    write_changed(
        package,
        "batching/batch_generator.py",
        find,
        find.replace("request.next_token]", "request.next_token ^ 1]"),
    )
    result = compare(package, "2.6", "--task", "4")
    assert result.exit_code == 1
    assert re.search(r"request 0: differs in tokens at \[\d+\]: yours \d+, reference \d+", words(result))


def test_a_run_that_never_ends_is_cut_short(package: Path) -> None:
    find = "request is None or not request.is_prefill_done or None not in self.slots"
    write_changed(package, "batching/batch_generator.py", find, "True")
    result = compare(package, "2.6", "--task", "4")
    assert result.exit_code == 1
    assert re.search(r"cut short has not finished after \d+ steps", words(result))
    assert timelines(result)[0][0].strip()


def test_a_model_that_differs_is_named_as_the_cause(package: Path) -> None:
    write_changed(package, "ops/basics.py", "x * mx.sigmoid(x)", "x + mx.sigmoid(x)")
    result = compare(package, "2.6", "--task", "4")
    assert "your model's logits differ from the reference's, so these answers will" in words(result)


# bad input


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--week", "9", "--day", "1"], "there is no week 9"),
        (["--week", "1", "--day", "9"], "week 1 has no day 9"),
        (["--week", "1", "--day", "1", "--task", "9"], "week 1 day 1 has tasks 1 to 3, not 9"),
        (
            ["--week", "2", "--day", "7", "--task", "5"],
            "this task has no time or memory to compare; its tests",
        ),
        (["--week", "1", "--day", "1", "--package", "nowhere"], "there is no package in nowhere"),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_code_2(arguments: list[str], sentence: str) -> None:
    app = typer.Typer()
    app.command()(main)
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, result.stdout.strip()) == (2, "")
    (line,) = result.stderr.strip().splitlines()
    assert sentence in line


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("def f(:", "basics.py, line 1: invalid syntax"),
        ("1 / 0", "tiny_llm does not import: ZeroDivisionError: division by zero ("),
        ("raise SystemExit('bye')", "tiny_llm does not import: SystemExit: bye ("),
    ],
)
def test_a_package_that_does_not_import_is_one_sentence(line: str, sentence: str, package: Path) -> None:
    sources = read_reference()
    sources[Path("ops/basics.py")] = f"{line}\n{sources[Path('ops/basics.py')]}"
    write(sources, package)
    result = compare(package, "1.1")
    assert (result.exit_code, result.stdout.strip()) == (2, "")
    (error,) = result.stderr.strip().splitlines()
    assert sentence in error
    assert error.count("basics.py, line 1") == 1
