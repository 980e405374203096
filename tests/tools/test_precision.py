"""Float32 stays float32 where a promise depends on it, and a self-check allows for TF32 where it does not."""

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType

import mlx.core as mx
import pytest

from accelerated import accelerate
from benches import prefix
from kernel_runtime import self_check
from scripts.author import record_figures, schedules
from scripts.book import run_fences
from scripts.checkpoints import compare_mlx_lm
from scripts.compare import __main__ as compare
from scripts.compare import learner as compare_learner
from tests.support.cpu_kernels import use_device
from tiny_llm.ops import basics

FULL, TF32 = "0", "1"
PROMISES = {  # a command, and the first of its functions that may compute
    "schedules": (schedules, partial(schedules.main, ref=True), "try_schedules"),
    "compare-mlx-lm": (compare_mlx_lm, compare_mlx_lm.main, "differing_prompts"),
    "compare": (compare_learner, partial(compare.main, 1, 1), "filled_package"),
    "record-figures": (record_figures, partial(record_figures.main, Path()), "record_sampler"),
    "bench-prefix": (prefix, prefix.main, "Load"),
    "book": (run_fences, run_fences.main, "choose_package"),
}


class BeginningError(Exception):
    """Ends a command where its work would begin."""


@pytest.mark.parametrize(("module", "main", "begins"), PROMISES.values(), ids=PROMISES)
def test_commands_that_promise_equal_results_turn_tf32_off(
    module: ModuleType, main: Callable[[], None], begins: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []

    def begin(*arguments: object, **options: object) -> None:
        found.append(os.environ["MLX_ENABLE_TF32"])
        raise BeginningError

    monkeypatch.setenv("MLX_ENABLE_TF32", TF32)
    monkeypatch.setattr(module, begins, begin)
    monkeypatch.setattr("json.load", lambda file: [])  # the fences of the book, from standard input
    with pytest.raises(BeginningError):
        main()
    assert found == [FULL]


def test_tests_are_run_without_tf32() -> None:
    assert os.environ["MLX_ENABLE_TF32"] == FULL


# --- the self-check of kernels -----------------------------------------------------------------------------


def cut(x: mx.array) -> mx.array:
    """What TF32 keeps of float32: 10 bits of the fraction."""
    return (x.view(mx.uint32) & 0xFFFFE000).view(mx.float32)


@pytest.fixture
def _chosen_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call chooses, and none of what is chosen here is kept for other tests."""
    for name in ("_operations", "_chosen"):
        monkeypatch.setattr(accelerate, name, inspect.unwrap(getattr(accelerate, name)))


@pytest.mark.usefixtures("_chosen_anew")
@pytest.mark.parametrize(
    ("device", "setting", "mlp"),
    [(mx.gpu, TF32, "fused_mlp"), (mx.gpu, FULL, "Qwen3MLP"), (mx.cpu, TF32, "Qwen3MLP")],
    ids=["TF32 on a GPU", "TF32 turned off", "no TF32 on a CPU"],
)
def test_tf32_passes_for_a_mistake_only_where_there_is_none(
    device: mx.DeviceType, setting: str, mlp: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_device(device, monkeypatch)
    monkeypatch.setenv("MLX_ENABLE_TF32", setting)
    monkeypatch.setattr(basics, "linear", lambda x, w, bias=None: cut(x) @ cut(w).T)
    assert accelerate.best_operations().mlp.__name__ == mlp


def test_tf32_is_allowed_for_unless_it_is_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    use_device(mx.gpu, monkeypatch)
    monkeypatch.delenv("MLX_ENABLE_TF32", raising=False)
    assert self_check.close_products() == self_check.CLOSE_IN_TF32


def test_a_kernel_whose_result_has_another_shape_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    assert self_check.judge("same", lambda: mx.ones((2, 3)), lambda: mx.ones((2, 3))) == "right"
    assert self_check.judge("broadcasts", lambda: mx.ones((2, 3)), lambda: mx.ones((3,))) == "wrong"


@pytest.mark.usefixtures("_chosen_anew")
def test_a_kernel_is_compared_with_what_mlx_gives_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[object] = []
    places: list[list[object]] = []

    @contextmanager
    def stream(place: object) -> Iterator[None]:
        entered.append(place)
        yield
        entered.pop()

    def noting(operation: Callable[..., mx.array]) -> Callable[..., mx.array]:
        def note(*arguments: object, **options: object) -> mx.array:
            places.append(list(entered))
            return operation(*arguments, **options)

        return note

    use_device(mx.cpu, monkeypatch)
    monkeypatch.setattr(mx, "stream", stream)
    monkeypatch.setattr(mx, "quantized_matmul", noting(mx.quantized_matmul))
    for name in ("rms_norm", "rope", "scaled_dot_product_attention"):
        monkeypatch.setattr(mx.fast, name, noting(getattr(mx.fast, name)))
    accelerate.best_operations().paged_attention()
    assert places == [[mx.cpu]] * 8  # two products, attention four times, a norm and a rotation
