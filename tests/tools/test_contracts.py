"""The contracts that every function of the package is held to: one that breaks them fails its caller."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from tests.support import contracts
from tests.support.check import check_value_error
from tests.support.contracts import at_most, check_shared, guard_class, guarded, times

SOURCE = """
from dataclasses import dataclass, field

@dataclass(frozen=True)
class Result:
    found: dict = field(default_factory=dict)

def fills(result):
    result.found[1] = 2

def in_place(x):
    x -= 1
    return x

def sorts(values):
    return values.sort()

def evaluates(x):
    mx.eval(x)
    return x

def reads(x):
    return x.item()

def reads_by_numpy(x):
    return np.array(x)

def reads_memory(x):
    memoryview(x)
    return x

def prints(x):
    return f"{x + 1}"

def makes(scale):
    return lambda x: x.tolist()

def lazy(x):
    return x * 2

def passes_on(function, x):
    return function(x)

def steps(rows):
    return [row.item() for row in rows] + [mx.eval(rows)]

class Held:
    shared = []

    def __init__(self, values=[]):
        self.values, self.count = values, 0

    def own(self):
        return self.values

    @property
    def held(self):
        return self.values

    def join(self):
        type(self).others = [self]

    def put_off(self):
        self.later = {1: [mx.ones(3) + 1]}

    def copy(self):
        return list(self.values)

    def grow(self, value):
        self.values.append(value)

    def refuse(self, counts_first):
        self.count += counts_first
        raise ValueError("no")
"""
BROKEN: dict[str, tuple[Callable[[Any], object], str]] = {
    "in_place": (lambda f: f(mx.zeros(3)), "changed its argument x"),
    "sorts": (lambda f: f([3, 1]), "changed its argument values"),
    "evaluates": (lambda f: f(mx.zeros(3)), "evaluates should not evaluate, but it does so once"),
    "reads": (
        lambda f: f(mx.array(3)),
        r"should not read numbers out of an array, but it does so once, by \.item\(\)",
    ),
    "reads_by_numpy": (lambda f: f(mx.zeros(3)), r"but it does so once, by np\.array"),
    "reads_memory": (lambda f: f(mx.zeros(3)), "waits until the numbers that it was given are computed"),
    "prints": (lambda f: f(mx.zeros(3)), "prints should not read|prints waits"),
    "steps": (lambda f: f(mx.zeros(3)), "steps should evaluate before it reads a number"),
    "makes": (lambda f: f(2)(mx.zeros(3)), "what makes returns should not read numbers .*, by .tolist"),
}


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A module of the package that breaks every contract."""
    monkeypatch.setattr(contracts, "shared", [])
    monkeypatch.setattr(contracts, "names_of_classes", {})
    monkeypatch.setitem(contracts.WAITING, "steps", lambda rows, result: 3)
    namespace: dict[str, Any] = {"__name__": "tiny_llm.ops.made_up", "mx": mx, "np": np}
    exec(SOURCE, namespace)
    return SimpleNamespace(**namespace)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_contract_fails_the_test_that_called(made_up: SimpleNamespace, name: str) -> None:
    call, sentence = BROKEN[name]
    with pytest.raises(pytest.fail.Exception, match=sentence):
        call(guarded(getattr(made_up, name), name))


def test_the_line_that_reads_numbers_is_told(made_up: SimpleNamespace) -> None:
    with pytest.raises(pytest.fail.Exception) as failure:
        guarded(made_up.makes, "makes")(2)(mx.zeros(3))
    frames = pytest.ExceptionInfo.from_exception(failure.value.__cause__).traceback
    assert [frame.name for frame in frames] == ["<lambda>"]


def test_what_a_test_itself_reads_is_no_fault_of_the_package(made_up: SimpleNamespace) -> None:
    def read(x: mx.array) -> mx.array:
        return mx.array(np.array(x))

    assert guarded(made_up.passes_on, "passes_on")(read, mx.zeros(3)).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("count", "most", "sentence"),
    [
        (1, 0, "decode should not evaluate, but it does so once"),
        (2, 1, "decode should evaluate at most once, but it does so twice"),
        (5, 2, "decode should evaluate at most twice, but it does so 5 times"),
    ],
)
def test_how_often_is_good_english(count: int, most: int, sentence: str) -> None:
    assert f"decode should {at_most('evaluate', most)}, but it does so {times(count)}" == sentence


def test_who_keeps_them_is_left_alone(made_up: SimpleNamespace) -> None:
    assert guarded(made_up.lazy, "lazy")(mx.array(3)).item() == 6


def test_a_method_hands_out_nothing_of_its_own(made_up: SimpleNamespace) -> None:
    guard_class(made_up.Held)
    assert made_up.Held([1]).copy() == [1]
    for name, read in {"own": lambda held: held.own(), "held": lambda held: held.held}.items():
        with pytest.raises(pytest.fail.Exception, match=rf"Held\.{name} returns the object's own values"):
            read(made_up.Held([1]))


@pytest.mark.parametrize("change", [lambda held: held.grow(1), lambda held: held.shared.append(1)])
def test_what_instances_share_stays(made_up: SimpleNamespace, change: Callable[[Any], object]) -> None:
    guard_class(made_up.Held)
    check_shared()
    change(made_up.Held())
    with pytest.raises(pytest.fail.Exception, match="is the same for all"):
        check_shared()


def test_a_class_gets_nothing_new(made_up: SimpleNamespace) -> None:
    guard_class(made_up.Held)
    made_up.Held([1]).join()
    with pytest.raises(pytest.fail.Exception, match=r"Held\.others belongs to the class"):
        check_shared()
    check_shared()


def test_a_frozen_argument_stays_as_it_was(made_up: SimpleNamespace) -> None:
    with pytest.raises(pytest.fail.Exception, match="fills changed its argument result"):
        guarded(made_up.fills, "fills")(made_up.Result())


def test_who_computes_everything_leaves_nothing(
    made_up: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contracts, "LEAVES_NOTHING", {"Held.put_off"})
    guard_class(made_up.Held)
    with pytest.raises(pytest.fail.Exception, match=r"Held\.put_off leaves 1 of 1 arrays"):
        made_up.Held([1]).put_off()


def test_a_call_that_is_refused_changes_nothing(made_up: SimpleNamespace) -> None:
    held = made_up.Held([1])
    with check_value_error():
        held.refuse(0)
    with check_value_error(keeps_all=False):
        held.refuse(1)
    with pytest.raises(pytest.fail.Exception, match=r"it changed held\.count"), check_value_error():
        held.refuse(1)
