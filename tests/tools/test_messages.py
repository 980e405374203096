"""What learners read when a test fails: kept messages, likely causes, and which failures are shown."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from scripts.author.messages import FOLDER, changes, normalize, rewrite, stored_messages
from scripts.bank.entries import load_bank
from scripts.course import ROOT, load_course
from tests.support.causes import NANS, result
from tests.support.check import check_close, check_equal, check_value_error, normal
from tests.support.failures import MAX_COLUMNS, MAX_LINES, Failure, cut, narrowed, tell
from tests.support.heads import head_mistakes
from tests.support.oracles import (
    Mistakes,
    attention_mistakes,
    causal_attention_mistakes,
    exact,
    grouped_attention_mistakes,
    linear_mistakes,
    softmax_mistakes,
)
from tests.support.places import Place, Where
from tests.support.reporting import (
    FailureReporter,
    first_failures,
    is_untouched,
    untouched_lines,
    what_is_left,
)

MESSAGES = stored_messages()
X = np.array(normal(3, 5, 5, seed=1))
CAUSAL = np.where(np.tri(5), 0.0, -np.inf)


def message_of(check: Callable[..., None], *arguments: Any, **options: Any) -> list[str]:
    """The lines that a failing check says."""
    with pytest.raises(pytest.fail.Exception) as failure:
        check(*arguments, **options)
    return str(failure.value).splitlines()


def told(test: Callable[[], object]) -> str:
    """What is said of the error that a test ends with."""
    with pytest.raises((LookupError, pytest.fail.Exception)) as failure:
        test()
    return tell(failure.value, Where(1, 1, 1), "test", Path(__file__), test).message


def test_an_error_that_is_missing_is_told_with_its_call() -> None:
    def test() -> None:
        with pytest.raises(KeyError):
            str(3)

    assert told(test) == "str(3): expected KeyError to reach the caller, nothing was raised"


def test_a_helper_s_error_is_told_with_its_line() -> None:
    def helper(seen: list[int]) -> int:
        return seen[1]

    def test() -> None:
        helper([])

    assert told(test).splitlines() == [
        "IndexError: list index out of range",
        "What your code returned doesn't fit what the test does with it: return seen[1]",
    ]


# --- the messages that are kept ----------------------------------------------------------------------------


def test_every_message_that_is_kept_has_a_run() -> None:
    """Which `pdm run author wrong` makes."""
    days = load_course().days
    starters = {f"{day.tasks[0].id} starter" for day in days}
    assert set(MESSAGES) == starters | {each.id for each in load_bank(days)} & set(MESSAGES)


def test_forty_wrong_solutions_and_every_day_have_theirs() -> None:
    starters = [f"{day.tasks[0].id} starter" for day in load_course().days]
    assert len(MESSAGES) >= 40 + len(starters)
    assert set(starters) <= set(MESSAGES)
    assert {name[:3] for name in MESSAGES} == {f"{day.week}.{day.day}" for day in load_course().days}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_is_short_and_shows_the_learner_s_line(name: str) -> None:
    lines = MESSAGES[name].splitlines()
    assert len(lines) <= MAX_LINES
    assert max(map(len, lines)) <= MAX_COLUMNS
    assert any(line.startswith("  tiny_llm/") for line in lines)
    assert "Traceback" not in MESSAGES[name]
    assert str(Path.home()) not in MESSAGES[name]
    assert ("is not written yet" in MESSAGES[name]) == name.endswith(" starter")


def test_a_changed_message_is_seen() -> None:
    (name, message), *_ = MESSAGES.items()
    assert changes(MESSAGES, MESSAGES) == []
    assert changes(MESSAGES, {**MESSAGES, name: f"{message}\nmore"})[-1] == "+more"


def test_rewriting_removes_what_is_no_longer_chosen(tmp_path: Path) -> None:
    rewrite({"1.1.1 a": "old", "1.1.2 b": "b", "1.2.1 c": "c"}, tmp_path)
    rewrite({"1.1.1 a": "new"}, tmp_path)
    assert stored_messages(tmp_path) == {"1.1.1 a": "new"}


def test_messages_are_read_as_they_were_written(tmp_path: Path) -> None:
    rewrite(MESSAGES, tmp_path)
    for name in (f"{day.stem}.md" for day in load_course().days):
        assert (tmp_path / name).read_text(encoding="utf-8") == (FOLDER / name).read_text(encoding="utf-8")
    assert stored_messages(tmp_path) == MESSAGES


def test_a_heading_alone_asks_for_its_message(tmp_path: Path) -> None:
    rewrite({"1.1.1 a": "a"}, tmp_path)
    (tmp_path / "week_1_day_2.md").write_text("## 1.2.1 b", encoding="utf-8")
    assert stored_messages(tmp_path) == {"1.1.1 a": "a", "1.2.1 b": ""}


def test_only_the_last_digits_of_decimals_may_differ() -> None:
    kept = {"a": "index [0, 1]: expected -0.009649, got 0.7323"}
    assert not changes(kept, {"a": "index [0, 1]: expected -0.00965, got 0.7324"})
    for other in (
        "index [0, 2]: expected -0.009649, got 0.7323",
        "index [0, 1]: expected -0.009649, got 0.75",
    ):
        assert changes(kept, {"a": other})


def test_what_varies_is_not_kept() -> None:
    text = "  tiny_llm/ops/basics.py:24\n      def softmax(x):\ngot <object at 0x7f00a1> of 4711 bytes\n\n"
    kept = "  tiny_llm/FILE.py:LINE\n      def softmax\ngot <object at 0xADDRESS> of SOME bytes"
    assert normalize(text) == kept
    text = "  tiny_llm/model/mlp.py:7\n      return silu(x)\n  tests/days/test_a.py:9\n      check(x)\n"
    assert normalize(text) == "  tiny_llm/FILE.py:LINE\n      CODE\n  tests/test_a.py:LINE\n      check(x)"


# --- likely causes -----------------------------------------------------------------------------------------

HIGHER = np.concatenate([X[:, 1:], X[:, :1] + 9], axis=1)
GENERIC = {
    "swapped axes": (X.swapaxes(1, 2), X, "It equals the expected result with axes 1 and 2 swapped."),
    "sign": (-X, X, "It equals the expected result with the other sign."),
    "factor": (X * 7, X, "It is 7 times the expected result."),
    "fraction": (X / 7, X, "It is 0.1429 (1/7) times the expected result."),
    "offset": (X - 0.5, X, "It is the expected result minus 0.5."),
    "shifted": (HIGHER, X, "It is off by one along axis 1: entry i is what entry i + 1 should be."),
    "reversed": (X[::-1], X, "It is reversed along axis 0."),
    "rows": (X[[1, 0, 2]], X, "Along axis 0 it holds the expected entries [1, 0, 2]."),
    "row 0": (X[[0, 0, 0]], X, "Along axis 0 every entry is what entry 0 should be."),
    "one row": (X + (np.arange(3) == 1)[:, None, None] * X**2, X, "Along axis 0 only entry 1 is wrong."),
    "nan": (np.where(X > 1, np.nan, X), X, "nan at index"),
    "inf": (np.where(X > 1, np.inf, X), X, "inf at index"),
    "mask": (np.where(np.eye(5, k=-2), -np.inf, CAUSAL), CAUSAL, "3 entries should not be -inf."),
}


@pytest.mark.parametrize(("actual", "expected", "sentence"), GENERIC.values(), ids=GENERIC)
def test_a_cause_is_found(actual: Any, expected: Any, sentence: str) -> None:
    lines = message_of(check_close, mx.array(np.ascontiguousarray(actual), mx.float32), expected, "x")
    assert lines[0].startswith("x: differs first at index [")
    assert lines[1].endswith(" entries differ.")
    assert lines[2].startswith(sentence)


def test_no_cause_is_better_than_a_wrong_one() -> None:
    lines = message_of(check_close, normal(3, 5, 5, seed=2), X, "x")
    assert len(lines) == 2


def test_a_known_mistake_is_named() -> None:
    mistakes = {"x cubed": lambda: X**3, "x squared": lambda: X**2}
    assert message_of(check_close, mx.array(X) ** 2, X, "x", mistakes=mistakes)[-1] == "It equals x squared."


def test_all_mistakes_that_fit_are_named_but_none_that_is_right_or_nan_all_over() -> None:
    mistakes = {"x squared": X**2, "nan": X * np.nan, "x itself": X, "x times x": X * X}
    lines = message_of(check_close, mx.array(X) ** 2, X, "x", mistakes=mistakes)
    assert lines[-1] == "It equals x squared. It also equals x times x."
    lines = message_of(check_close, mx.array(X) * mx.nan, X, "x", mistakes=mistakes)
    assert lines[-1].startswith("nan at index [0, 0, 0] comes of")


@pytest.mark.parametrize("bits", NANS)
def test_where_a_nan_stood_is_told_by_its_bits(bits: int) -> None:
    nan = mx.array(np.array([bits << 16], np.uint32)).view(mx.float32)
    actual = mx.where(mx.array(X) > 1, 2 * mx.exp(nan), mx.array(X))
    assert NANS[bits] in " ".join(message_of(check_close, actual, X, "x"))


def test_a_mistake_that_cannot_be_computed_is_passed_over() -> None:
    mistakes = {"no product": lambda: X @ X[:, :2], "x squared": lambda: X**2}
    assert message_of(check_close, mx.array(X) ** 2, X, "x", mistakes=mistakes)[-1] == "It equals x squared."


LENGTHS = [(7, 7), (7, 11), (1, 11), (11, 5), (1, 1)]


@pytest.mark.parametrize(("L", "S"), LENGTHS)
@pytest.mark.parametrize("mask_shape", [(), (3, 1, 1)], ids=["one mask", "a mask a head"])
def test_every_known_mistake_can_be_computed_at_every_length(
    L: int, S: int, mask_shape: tuple[int, ...]
) -> None:
    B, H, D = 2, 3, 5
    mask = exact(normal(*mask_shape, seed=1)) + exact(normal(L, S, seed=2))
    heads = [exact(normal(B, H, n, D, seed=n)) for n in (L, S, S)]
    inputs = [exact(normal(B, n, H * D, seed=n)) for n in (L, S, S)]
    matrices = [exact(normal(H * D, H * D, seed=i)) for i in range(4)]
    tables: list[Mistakes] = [
        softmax_mistakes(inputs[0], -2),
        linear_mistakes(inputs[0], matrices[0][:4]),
        attention_mistakes(*heads, mask=mask),
        causal_attention_mistakes(*heads),
        grouped_attention_mistakes(np.repeat(heads[0], 2, axis=1), *heads[1:]),
        grouped_attention_mistakes(*heads, is_causal=True),
        head_mistakes(matrices, inputs, H, mask),
    ]
    for table in tables:
        with np.errstate(all="ignore"):
            shapes = {np.shape(result(mistake)) for mistake in table.values()}
        assert len(shapes) == 1


def test_a_softmax_that_does_not_keep_its_axis_is_named() -> None:
    exponentials = np.exp(X[:3, :3, :3])
    wrong = mx.array(exponentials / exponentials.sum(axis=-1))
    cube = exact(mx.array(X[:3, :3, :3]))
    expected = exponentials / exponentials.sum(axis=-1, keepdims=True)
    lines = message_of(check_close, wrong, expected, "softmax", mistakes=softmax_mistakes(cube, -1))
    assert "keep the axis in the sum (keepdims)" in lines[-1]


def test_mistakes_are_computed_only_for_a_message() -> None:
    check_close(mx.array(X), X, "x", mistakes={"never": lambda: 1 / 0})


@pytest.mark.parametrize(
    ("actual", "sentence"),
    [
        (X[:, :4].swapaxes(0, 1), "Axes 0 and 1 are swapped."),
        (X[:, :4].reshape(4, 3, 5), "The numbers are right, in another shape."),
    ],
)
def test_a_shape_has_a_cause_too(actual: Any, sentence: str) -> None:
    lines = message_of(check_close, mx.array(actual), X[:, :4], "x")
    assert lines == ["shape of x: expected (3, 4, 5), got (4, 3, 5)", sentence]


LISTS = {
    "one too many": ([1, 2, 3], [1, 2], "1 too many at the end, the others are right."),
    "first one lost": ([2, 3], [1, 2, 3], "1 too few at the beginning, the others are right."),
    "reversed": ([3, 2, 1], [1, 2, 3], "The order is reversed."),
    "other order": ([2, 3, 1], [1, 2, 3], "The same items in another order."),
    "two answers": ([False, True], [True, False], None),
    "needless key": ({1: 2, 3: 4}, {1: 2}, "It should not have 3."),
}


@pytest.mark.parametrize(("actual", "expected", "sentence"), LISTS.values(), ids=LISTS)
def test_lists_and_dicts_have_causes(actual: Any, expected: Any, sentence: str | None) -> None:
    first = f"x: expected {expected!r}, got {actual!r}"
    assert message_of(check_equal, actual, expected, "x") == [first, *([sentence] if sentence else [])]


def test_of_a_long_list_the_first_difference_is_shown() -> None:
    expected = [{"step": i, "chunks": [(i, list(range(16)))]} for i in range(30)]
    actual = [*expected[:7], {"step": 7, "chunks": [(8, list(range(16)))]}, *expected[8:]]
    (line,) = message_of(check_equal, actual, expected, "rows")
    assert line.startswith("rows: differs first at [7]['chunks']: expected [(7, [0,")


def test_truth_values_are_told_by_place() -> None:
    actual, expected = [i == 3 for i in range(9)], [i == 4 for i in range(9)]
    assert message_of(check_equal, actual, expected, "kept")[0] == (
        "kept: expected True at [4] of 9, got True at [3] of 9"
    )


def test_an_error_that_does_not_come_is_told_with_its_values() -> None:
    def check() -> None:
        with check_value_error(slot=1, shape=(7, 96)):
            pass

    assert message_of(check) == [
        "expected a ValueError that shows 1 (slot) and (7, 96) (shape), nothing was raised"
    ]


def test_another_error_is_told_with_what_was_expected() -> None:
    def raises(error: Exception) -> None:
        with check_value_error(size=3, what="the shelf"):
            raise error

    expected = "the shelf: expected a ValueError that shows 3 (size), got "
    assert message_of(raises, AssertionError()) == [f"{expected}AssertionError"]
    assert message_of(raises, KeyError("slot")) == [f"{expected}KeyError: 'slot'"]
    with pytest.raises(NotImplementedError):
        raises(NotImplementedError("a hole"))


class Shelf:
    """Something to call."""

    def put(self, *_: object, **__: object) -> None: ...


WIDTH = 7


def test_an_error_that_does_not_come_is_told_with_the_call() -> None:
    sizes, options, key, box = (-1, 3, float("nan")), {"slot": 0}, "low", Shelf()

    def stars() -> None:
        with check_value_error(size=-1):
            box.put(*sizes, WIDTH, **options)

    def computed_names() -> None:
        with check_value_error(key=key):
            _ = box.put([size for size in sizes if size], **{key: slice(2), "high": range(3)})

    def another_error() -> None:
        with check_value_error(base=9):
            int(key)

    def method() -> None:
        for call in (box.put,):
            with check_value_error():
                call(normal)

    def words() -> None:
        with check_value_error(what="the shelf"):
            box.put()

    begins = {
        stars: "box.put(-1, 3, nan, 7, slot=0): expected a ValueError",
        computed_names: "box.put([size for size in sizes if size], low=slice(2), high=range(3)): expected",
        another_error: "int('low'): the ValueError should show 9 (base), it says: invalid literal",
        method: "Shelf.put(normal): expected a ValueError, nothing was raised",
        words: "the shelf: expected a ValueError, nothing was raised",
    }
    for check, begin in begins.items():
        assert message_of(check)[0].startswith(begin)


# --- which failures are shown ------------------------------------------------------------------------------


def failures_of(*tasks: tuple[Where, int]) -> list[Failure]:
    """So many failures of each task, each with a message of its own."""
    return [
        Failure(where, f"test_{i}", f"message {i} of {where}", ()) for where, n in tasks for i in range(n)
    ]


FIRST, SECOND, THIRD = Where(1, 1, 2), Where(1, 1, 3), Where(2, 1, 1)


def test_the_first_unsolved_task_alone_is_shown() -> None:
    failures = failures_of((FIRST, 2), (SECOND, 5), (THIRD, 1))
    shown = first_failures(failures)
    assert shown == failures[:2]
    assert what_is_left(failures, shown) == ["2 later tasks fail too: --all shows every failure"]


def test_three_failures_of_a_task_are_shown() -> None:
    failures = failures_of((FIRST, 8))
    shown = first_failures(failures)
    assert shown == failures[:3]
    assert what_is_left(failures, shown) == ["and 5 more tests of this task (--all shows them)"]


def test_each_test_function_is_shown_once_before_any_is_shown_twice() -> None:
    names = ["test_a[1]", "test_a[2]", "test_a[3]", "test_b", "test_c"]
    failures = [Failure(FIRST, name, f"message of {name}", ()) for name in names]
    assert [failure.name for failure in first_failures(failures)] == ["test_a[1]", "test_b", "test_c"]
    assert [failure.name for failure in first_failures(failures[:4])] == ["test_a[1]", "test_b", "test_a[2]"]


def test_the_same_message_is_shown_once() -> None:
    failures = [Failure(FIRST, f"test_{i}", "softmax is not written yet", ()) for i in range(4)]
    assert first_failures(failures) == failures[:1]


def test_with_all_nothing_is_left() -> None:
    failures = failures_of((FIRST, 2), (SECOND, 5))
    assert what_is_left(failures, failures) == []


def hole(where: Where, name: str, symbol: str, line: int) -> Failure:
    place = Place(ROOT / "tiny_llm" / "ops" / "basics.py", line)
    return Failure(where, name, f"{where}: {symbol} is not written yet", (place,))


def test_an_untouched_task_is_one_line_a_function() -> None:
    task = Where(1, 1, 1)
    failures = [hole(task, f"test_{i}", "softmax", 11) for i in range(9)]
    failures += [hole(task, "test_9", "linear", 29), *failures_of((SECOND, 5))]
    assert is_untouched(failures)
    assert untouched_lines(failures) == [
        "week 1 day 1 task 1: Softmax and the linear layer",
        "softmax is not written yet: tiny_llm/ops/basics.py:11",
        "linear is not written yet: tiny_llm/ops/basics.py:29",
        "1 later task fails too: --all shows every failure",
    ]
    assert not is_untouched([*failures_of((task, 1)), *failures])


def test_a_task_is_told_with_its_title_and_other_tests_as_pytest_does() -> None:
    assert Where.of("tests/days/test_week_1_day_1.py::test_task_2_attention[x]") == FIRST
    assert FIRST.heading == "week 1 day 1 task 2: Scaled dot-product attention"
    assert Where.of("tests/days/test_week_1_day_1.py") == Where(1, 1, 0)
    assert Where.of("tests/engine/test_equality.py::test_task_2_attention") is None
    for file, quotation in (("test_week_1_day_1.py", ""), ("test_equality.py", "quoted")):
        item: Any = SimpleNamespace(nodeid=f"tests/{file}::test_x", repr_failure=lambda error: "quoted")
        FailureReporter(shows_all=False).pytest_runtest_setup(item)
        assert item.repr_failure(None) == quotation


def test_a_failure_of_many_words_is_cut() -> None:
    failure = Failure(FIRST, "test_" + "x" * 300, "word " * 900, (), "\n".join(map(str, range(99))))
    assert len(failure.lines()) == MAX_LINES
    assert max(map(len, failure.lines())) <= MAX_COLUMNS
    assert failure.lines()[-3:] == ["  printed: 96", "  printed: 97", "  printed: 98"]


def test_a_long_line_loses_its_middle() -> None:
    assert cut("a" * 200 + "b" * 200).strip("ab") == " ... "
    assert cut("short") == "short"


def test_what_cannot_explain_every_failure_is_not_pointed_at() -> None:
    of, child, test = (Place(Path(name), 1) for name in ("of.py", "child.py", "test.py"))
    where = Where(3, 4, 1)
    outer = Failure(where, "outer", "", (of, child, test), suspects=(of, child))
    inner = Failure(where, "inner", "", (child, test), suspects=(child,))
    assert [failure.places for failure in narrowed([outer, inner])] == [(child, test)] * 2
    assert narrowed([outer]) == [outer]
    other = Failure(where, "other", "", (test,), suspects=(test,))
    assert narrowed([outer, other]) == [outer, other], "two mistakes"


class Steps(list[list[tuple[int, int]]]):
    """A list of another type than what it is compared with."""


def test_of_a_schedule_the_first_step_that_differs_is_shown_whole() -> None:
    steps = [[(0, 2), (1, 3)], [(0, 3), (1, 4), (2, 12)], [(1, 5), (2, 13)], [(2, 14)]]
    actual = Steps([steps[0], [(0, 3), (1, 4)], *steps[2:]])
    (message,) = message_of(check_equal, actual, steps, "steps")
    assert message == "steps: differs first at [1]: expected [(0, 3), (1, 4), (2, 12)], got [(0, 3), (1, 4)]"
