"""One suite for two packages: the tests import `tiny_llm`, and --ref makes that name mean the reference."""

import functools
import gc
import itertools
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, is_hypothesis_test, settings

import scripts  # noqa: F401  loads a fast BLAS, which must come before MLX
from kernel_runtime.native import use_one_blas_thread
from scripts.hardware.precision import use_full_float32
from scripts.packages import choose_package
from tests.support.interrupts import Interrupts
from tests.support.laws import (
    NUM_GUARDED,
    choose_examples,
    database_of,
    examples_in,
    failed_once,
)
from tests.support.optional import LeftOut
from tests.support.reporting import FailureReporter

TESTS = Path(__file__).resolve().parent
NAMED_ONLY = tuple(
    TESTS / name for name in ("tools", "book", "platforms", "clients")
)  # run by `pdm run author test-book` etc.
LONGEST_ID = 40  # characters


use_full_float32()
os.environ.setdefault("TINY_LLM_KERNELS", "own")  # no race decides a test
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # for the processes that tests start
use_one_blas_thread()
found_failing = database_of(failed_once())
settings.register_profile(  # how long a machine takes decides no test
    "course",
    deadline=None,
    database=found_failing,
    phases=set(Phase) - {Phase.explain},  # which takes most of the time of a test that fails
    print_blob=False,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("course")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--ref", action="store_true", help="test tiny_llm_ref, the reference")
    parser.addoption("--task", type=int, help="only the tests of this task of a day")
    parser.addoption("--gpu", help="skip optional tasks not begun, of a learner of metal, cuda or none")
    parser.addoption("--laws", type=int, metavar="SEED", help="only laws, on examples drawn from this seed")
    parser.addoption("--record-cuda", action="store_true", help="write the book's table of CUDA kernels")
    parser.addoption("--record-counts", action="store_true", help="write the book's counts of GPU kernels")
    parser.addoption(
        "--all", action="store_true", help="show every failure, not only the first unsolved task's"
    )


def pytest_configure(config: pytest.Config) -> None:
    try:
        choose_package(reference=config.getoption("--ref"))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    config.addinivalue_line(
        "markers", "sampled(share, *paths): unless these change, .ci/run has it at one of `share` commits"
    )
    config.pluginmanager.register(Interrupts())
    if config.getoption("--gpu"):
        config.pluginmanager.register(LeftOut(config.getoption("--gpu")))
    if config.option.tbstyle == "auto":
        config.pluginmanager.register(FailureReporter(shows_all=config.getoption("--all")))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave some folders to commands of their own, which install what their tests need."""
    named = [
        path
        for argument in config.args
        for path in (Path(argument).resolve(), *Path(argument).resolve().parents)
    ]
    return True if collection_path in NAMED_ONLY and collection_path not in named else None


@pytest.fixture
def on_cpu() -> Iterator[None]:
    """Make the CPU the default device, as tests of CPU kernels need it on a machine with a GPU."""
    import mlx.core as mx  # only after the package

    with mx.stream(mx.cpu):
        yield


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name a case by its value where pytest would number it, so that a report says which one failed."""
    if isinstance(val, set):  # in one order for all processes that share the tests
        val = sorted(val, key=repr)
    is_type = type(val).__name__ == "Dtype"  # of MLX, which is imported only after the package
    text = repr(val) if is_type or isinstance(val, tuple | list | dict | slice) else ""
    text = text.removeprefix("mlx.core.")
    return text if 0 < len(text) <= LONGEST_ID else None


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, name: str) -> list[pytest.Item] | None:
    """Leave out the tests of other tasks before their cases are made, which takes longer than most tests."""
    task = collector.config.getoption("--task")
    is_left_out = task is not None and name.startswith("test_") and not name.startswith(f"test_task_{task}_")
    return [] if is_left_out else None


class HoleError(BaseException):
    """Carries the error of what is not written yet through hypothesis, which looks at exceptions only."""


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Try a law on its examples, and end it at the first hole: to simplify that example would take long."""
    from tests.support import contracts  # only after the package

    handle = getattr(pyfuncitem.obj, "hypothesis", None)
    if handle is None:
        return (yield)
    choose_examples(pyfuncitem, pyfuncitem.config.getoption("--laws") or 0)
    inner, counted, has_failed = handle.inner_test, itertools.count(), False

    @functools.wraps(inner)
    def test(*args: object, **kwargs: object) -> object:
        nonlocal has_failed
        try:
            with contracts.kept_if(next(counted) < NUM_GUARDED or has_failed):
                return inner(*args, **kwargs)
        except NotImplementedError as error:
            raise HoleError from error
        except (Exception, pytest.fail.Exception):
            has_failed = True  # perhaps of a contract, which must fail again when hypothesis repeats it
            raise

    handle.inner_test = test
    try:
        return (yield)
    except HoleError as hole:
        raise (hole.__cause__ or hole) from None
    finally:
        handle.inner_test = inner
        failing = examples_in(found_failing, pyfuncitem.nodeid)
        pyfuncitem.user_properties += [("examples", next(counted)), ("failing", failing)]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> None:
    """Keep hypothesis from a patch that adds a failing example to the tests: it takes seconds, unasked."""
    vars(item).pop("_hypothesis_failing_examples", None)


@pytest.fixture(autouse=True)
def _shared_things_stay() -> Iterator[None]:
    """Fail a test that changed what calls or instances share by default."""
    yield
    from tests.support.contracts import check_shared

    check_shared()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    from tests.support.contracts import guard_package  # only after the package

    functions = [item for item in items if isinstance(item, pytest.Function)]
    guard_package({item.module for item in functions if item.module.__name__.startswith("tests.days.")})
    if config.getoption("--laws") is not None:
        items[:] = [item for item in functions if is_hypothesis_test(item.obj)]


def pytest_collection_finish() -> None:
    """What is there now stays: to look through it at each collection of garbage takes a tenth of the run."""
    gc.freeze()
