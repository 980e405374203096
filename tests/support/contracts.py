"""What holds for every function of the package: checked wherever a test calls one, whatever it tests.

A call leaves its arguments as they were and hands out nothing that its object goes on using; what calls and
instances share stays as it was; a call that is refused changes nothing. Only calls from a test's own lines
are looked at: what the package does within itself is its own.
"""

import functools
import inspect
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from types import FunctionType, ModuleType
from typing import Any, NoReturn

import mlx.core as mx
import numpy as np
import pytest

from tests.support.check import fail
from tests.support.evaluations import (
    EARLY_READS,
    EVALUATES,
    MUST_ASK,
    AskedError,
    Evaluations,
    evaluations,
    is_waiting,
    let_wait,
    num_operations,
)
from tests.support.state import MUTABLE, attributes_of, is_of_package, is_packages_own, state_of

CALLERS = ("tests.days.", "tests.support.", "tests.tools.test_contracts")
LAZY = (
    "ops.",
    "kernels.",
    "model.",
    "generation.",
    "paging.paged_kv_cache",
    "paging.forward_batch",
    "paging.quantized_kv_pool",
    "paging.quantized_batch",
    "engine.batch_sampler",
)
"""Parts of the package whose functions wait for no number."""
MAY_READ = ("group_by_expert",)
"""Functions of these parts whose task does not promise that: NumPy sorts as well."""
LAZY_CALLS = ("to_message", "send", "ModelRunner.compute")
"""Functions of other parts that promise the same."""
WAITING: dict[str, Callable[[Any, Any], int]] = {
    "Request.try_prefill": lambda request, num_tokens: 1,
    "BatchGenerator.decode_phase": lambda generator, is_done: len(generator.slots),
    "BatchGenerator.promote_phase": lambda generator, is_done: 0,
    "DenseRunner.run": lambda runner, samples: len(samples.token_ids) + 3 * len(samples.logprobs),
    "ModelRunner.run": lambda runner, samples: len(samples.token_ids) + 3 * len(samples.logprobs),
    "Engine.step": lambda engine, step: len(step.scheduled.final) + 3 * len(step.logprobs),
}
"""Who evaluates, and that once: how many numbers it may read, by its first argument and its result."""
LEAVES_NOTHING = WAITING.keys() - {"BatchGenerator.decode_phase", "Engine.step"}
"""Those of them that compute all they hold; a decode may have a row to move, and a step lets `run` do it."""
LOOPS = ("simple_generate", "simple_generate_with_kv_cache", "token_id")
"""Who waits for each token by itself, and for nothing but the token."""
shared: list[tuple[str, Any, Any]] = []
"""What calls or instances share by default: its name, the thing itself, and what it was at the start."""
names_of_classes: dict[type, set[str]] = {}
"""What each class had at the start."""


_are_kept = True


@contextmanager
def kept_if(are_kept: bool) -> Iterator[None]:
    """Check the contracts of the calls meanwhile, or don't: to do so costs a quarter of a law."""
    global _are_kept
    before, _are_kept = _are_kept, are_kept
    try:
        yield
    finally:
        _are_kept = before


def guard_package(test_modules: Iterable[ModuleType]) -> None:
    """Guard the methods of all classes of the package, and the functions that these modules name."""
    for module in {id(each): each for name, each in sys.modules.items() if is_of_package(name)}.values():
        for owner in list(vars(module).values()):
            if isinstance(owner, type) and owner.__module__ == module.__name__:
                guard_class(owner)
    for module in test_modules:
        for name, value in list(vars(module).items()):
            if isinstance(value, FunctionType) and is_of_package(value.__module__):
                setattr(module, name, guarded(value, value.__name__))


def guard_class(owner: type) -> None:
    """Guard the methods and properties that a class defines itself, and note what its instances share."""
    names_of_classes[owner] = own_names(owner)
    for name, value in list(vars(owner).items()):
        if isinstance(value, MUTABLE):
            shared.append((f"{owner.__name__}.{name}", value, state_of(value)))
        is_public = not name.startswith("_") or name in ("__init__", "__call__")
        if isinstance(value, FunctionType) and is_public:
            label = owner.__name__ if name in ("__init__", "__call__") else f"{owner.__name__}.{name}"
            setattr(owner, name, guarded(value, label))
        elif isinstance(value, property) and is_public and value.fget is not None:
            setattr(owner, name, value.getter(owned(value.fget, f"{owner.__name__}.{name}")))


def owned(read: Callable[[Any], Any], label: str) -> Callable[[Any], Any]:
    """A property that fails a test which it hands something of its object's own; read often, so no more."""

    @functools.wraps(read)
    def call(owner: Any) -> Any:
        __tracebackhide__ = True
        result = read(owner)
        if isinstance(result, (*MUTABLE, tuple)) and is_called_by_a_test():
            check_own(label, owner, result)
        return result

    return call


def own_names(owner: type) -> set[str]:
    """What a class itself has under a name that a programmer gave."""
    return {name for name in vars(owner) if not name.startswith("__")}


def guarded(function: Callable[..., Any], label: str) -> Callable[..., Any]:
    """The function, which fails a test that called it if it breaks a contract."""
    if hasattr(function, "__guarded__"):
        return function
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    shared.extend(
        (f"a default of {label}", each, state_of(each)) for each in defaults if isinstance(each, MUTABLE)
    )

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if not is_called_by_a_test():
            return function(*args, **kwargs)
        given = [*args, *kwargs.values()]
        owner = args[0] if "." in function.__qualname__ else None
        before = [None if each is owner else state_given(each) for each in given]
        numbers = numbers_in(given) if is_lazy(function.__module__, label) else []
        for x in numbers:
            let_wait(x)
        with evaluations() as counts:
            try:
                result = function(*args, **kwargs)
                were_read = not counts.is_asked_by_others and not all(map(is_waiting, numbers))
            finally:
                check_unchanged(function, label, given, before)
        check_waits(function.__module__, label, args, result, counts)
        counts.asked.clear()  # their frames would keep arrays
        if were_read:
            fail(
                f"{label} waits until the numbers that it was given are computed, and it should not.",
                "np.array(x), memoryview(x), print(x) and mx.save wait, too: use operations of MLX alone.",
            )
        if label in LEAVES_NOTHING and result is not False:
            check_evaluated(label, args[0])
        check_own(label, owner, result)
        return guarded(result, f"what {label} returns") if isinstance(result, FunctionType) else result

    call.__guarded__ = True  # type: ignore[attr-defined]
    return call


def is_lazy(module: str, label: str) -> bool:
    """Whether a function waits for no number at all."""
    if label in WAITING or label in LOOPS or label in MAY_READ or label.rpartition(".")[2] in MUST_ASK:
        return False
    return label in LAZY_CALLS or module.partition(".")[2].startswith(LAZY)


def numbers_in(given: Iterable[Any]) -> list[mx.array]:
    """The arrays that a function is given, and the floats in objects: an object's integers may be read."""
    listed = [each if isinstance(each, list | tuple) else [each] for each in given]
    direct = [x for each in listed for x in each if isinstance(x, mx.array)]
    held = [x for x in arrays_of([*given], set()) if mx.issubdtype(x.dtype, mx.floating)]
    return [*{id(x): x for x in (*direct, *held)}.values()]


def check_waits(module: str, label: str, args: tuple[Any, ...], result: Any, counts: Evaluations) -> None:
    """Fail if a function waits for numbers more often than it must."""
    __tracebackhide__ = True
    num_early_reads = counts.pop(EARLY_READS, 0)
    num_evaluations = sum(counts.pop(name, 0) for name in EVALUATES)
    most_evaluations, most_reads = 0, 0
    if label in LOOPS:
        most_evaluations = most_reads = counts.total()  # numbers that it read
    elif label in WAITING:
        if type(getattr(args[0], "execution", None)).__name__ not in ("NoneType", "InTurn"):
            return  # overlapped steps and drafts wait at other places
        most_evaluations, most_reads = 1, WAITING[label](args[0], result)
        if num_early_reads > 1:
            what = "evaluate before it reads a number: otherwise it waits for each by itself"
            fail_at(counts.asked[False][0], f"{label} should {what}.")
    elif not is_lazy(module, label):
        return
    if num_evaluations > most_evaluations:
        what = at_most("evaluate", most_evaluations)
        fail_at(
            counts.asked[True][most_evaluations],
            f"{label} should {what}, but it does so {times(num_evaluations)}.",
            "Each evaluation waits until everything in it is computed.",
        )
    if counts.total() > most_reads:
        asked = counts.asked[False][most_reads]
        what = at_most("read numbers out of an array", most_reads)
        fail_at(asked, f"{label} should {what}, but it does so {times(counts.total())}, by {asked}.")


def fail_at(asked: AskedError, *sentences: str) -> NoReturn:
    """Fail with these sentences, and the learner's line that asked for numbers."""
    __tracebackhide__ = True
    raise pytest.fail.Exception("\n".join(sentences)) from asked


def check_evaluated(label: str, owner: Any) -> None:
    """Fail if arrays that an object holds are still to be computed."""
    __tracebackhide__ = True
    held = list(arrays_of(owner, set()))
    if num_operations(*held):
        num_waiting = sum(num_operations(each) > 0 for each in held)
        fail(
            f"{label} leaves {num_waiting} of {len(held)} arrays to be computed later.",
            "Evaluate the state of every layer, and every sample: else the graph grows from call to call.",
        )


def arrays_of(value: Any, known: set[int]) -> Iterator[mx.array]:
    """The arrays in a thing of the package and in what it holds, other than a model's weights."""
    if isinstance(value, mx.array):
        yield value
    elif id(value) not in known:
        known.add(id(value))
        inner: Iterable[Any] = ()
        if isinstance(value, Mapping):
            inner = value.values()
        elif isinstance(value, list | tuple | deque):
            inner = value
        elif is_packages_own(value):
            inner = [getattr(value, name) for name in attributes_of(value) if name != "model"]
        for each in inner:
            yield from arrays_of(each, known)


def times(count: int) -> str:
    """How often, in words where English has one."""
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def at_most(verb: str, count: int) -> str:
    """What may be done so often, after the word "should"."""
    return f"{verb} at most {times(count)}" if count else f"not {verb}"


def is_called_by_a_test() -> bool:
    """Whether a task's test calls a guarded function, in the thread that tests run in, and it is checked."""
    is_main = threading.current_thread() is threading.main_thread()
    return _are_kept and is_main and sys._getframe(2).f_globals.get("__name__", "").startswith(CALLERS)


def check_unchanged(function: Callable[..., Any], label: str, given: list[Any], before: list[Any]) -> None:
    """Fail if an argument is not what it was, with its name."""
    __tracebackhide__ = True
    for i, (value, state) in enumerate(zip(given, before, strict=True)):
        if state is not None and state_given(value) != state:
            names = list(inspect.signature(function).parameters)
            is_array = isinstance(value, mx.array | np.ndarray)
            fail(
                f"{label} changed its argument {names[min(i, len(names) - 1)]}, which is the caller's.",
                "`x -= y` changes an array in place: write `x = x - y`." if is_array else None,
            )


def state_given(value: Any) -> Any:
    """The state of what a caller gives and keeps: what can be changed, or what is frozen; None of others."""
    if isinstance(value, MUTABLE):
        return state_of(value, False)
    settings = getattr(type(value), "__dataclass_params__", None)
    if settings is None or not settings.frozen or not is_packages_own(value):
        return None
    return {each.name: state_of(getattr(value, each.name), False) for each in fields(value)}


def check_own(label: str, owner: Any, result: Any) -> None:
    """Fail if a result is something that its object goes on using."""
    __tracebackhide__ = True
    held = {id(value): name for name, value in held_by(owner)}
    for item in result if isinstance(result, tuple) else (result,):
        if isinstance(item, MUTABLE) and id(item) in held:
            fail(f"{label} returns the object's own {held[id(item)]}, not a copy that the caller may change.")


def held_by(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object of the package has under names, and what the objects among it have."""
    for name, inner in getattr(value, "__dict__", {}).items() if is_packages_own(value) else ():
        yield name, inner
        if is_packages_own(inner):
            yield from ((f"{name}.{deeper}", each) for deeper, each in getattr(inner, "__dict__", {}).items())


def check_shared() -> None:
    """Fail if what calls or instances share by default has changed."""
    __tracebackhide__ = True
    for name, value, state in shared:
        if state_of(value) != state:
            fail(f"{name} was changed, and is the same for all: make a new one each time.")
    for owner, names in names_of_classes.items():
        for name in own_names(owner) - names:
            delattr(owner, name)
            fail(f"{owner.__name__}.{name} belongs to the class, so all instances share it: set it on self.")
