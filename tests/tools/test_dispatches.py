"""What a GPU would start for a decode step is counted, and is no more than mlx-lm needs."""

from collections import Counter
from pathlib import Path

import mlx.core as mx
import pytest

from accelerated.gpu_fused import SWIGLU
from benches.dispatches import count_steps, counting
from kernel_runtime.launch import Launch, Target
from scripts.checkpoints.files import SHIPPED_MODEL, resolve_checkpoint
from tests.support.check import check_equal
from tests.support.checkpoints import Variant, build, save
from tests.support.ragged import Shape, draw
from tiny_llm.kernels import gpu_operations
from tiny_llm.kernels.paged_gpu import paged_attention_gpu
from tiny_llm.ops.attention import Mask

pytestmark = pytest.mark.usefixtures("on_cpu")


def test_what_is_a_dispatch() -> None:
    x = mx.zeros((4, 8))
    mx.eval(x)
    with counting() as launches:
        mx.eval(mx.concatenate([x[:, :3], x, (x + 1).reshape(4, 8).T.reshape(4, 8)], axis=1))
        mx.eval(x, [[mx.fast.rms_norm(x, x.reshape(32)[:8], 1e-5)]])
    check_equal(dict(launches), {"Concatenate": 3, "Add": 1, "rms_norm": 1}, "dispatches")


def test_a_kernel_wants_its_inputs_contiguous_and_large() -> None:
    x = mx.zeros((4, 8))
    launch = Launch(
        (x[:, :3], mx.zeros(2)), (4, 3), mx.float32, (1, 1, 1), 32, {"T": mx.float32}, (3, 3, 0, 12)
    )
    with counting() as launches:
        mx.eval(x)
        launches.clear()
        SWIGLU(Target("metal"), launch)
    expected = {"Full": 2, "Concatenate": 2, "copy for a kernel": 1, "kernel swiglu": 1}
    check_equal(dict(launches), expected, "dispatches of a kernel, of a strided input and of a small one")


def test_decodes_before_a_chunk_are_attended_to_where_they_lie() -> None:
    ragged = draw(Shape((1, 1, 20), (40, 9, 33)), mx.float32)
    mx.eval(ragged.arguments)
    with counting() as launches:
        mx.eval(paged_attention_gpu(*ragged.arguments))
    expected = {"kernel paged_decode": 1, "kernel paged_attention": 1, "Concatenate": 2}
    check_equal(+launches, Counter(expected), "dispatches")


@pytest.mark.parametrize(
    ("num_queries", "num_keys", "mask", "few_queries", "expected"),
    [
        (1, 513, "causal", 8, ["split_decode", "merge_splits"]),
        (1, 513, None, 8, ["split_decode", "merge_splits"]),
        (1, 512, None, 8, ["flash_decode"]),
        (1, 513, mx.zeros(513), 8, ["flash_decode"]),
        (2, 513, "causal", 8, ["flash_decode"]),
        (1, 513, None, 0, ["flash_attention"]),  # with TINY_LLM_INVARIANT
    ],
)
def test_a_dense_cache_is_attended_to_where_it_lies(
    num_queries: int,
    num_keys: int,
    mask: Mask,
    few_queries: int,
    expected: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu_operations, "FEW_QUERIES", few_queries)
    query, cache = mx.zeros((2, 4, num_queries, 64)), mx.zeros((2, 3, 600, 64))
    mx.eval(query, cache, mask)
    part = cache[:, :2, 5 : 5 + num_keys]
    with counting() as launches:
        mx.eval(gpu_operations.flash_attention_gpu(query, part, part, mask=mask))
    copies = {"copy for a kernel": 2} if expected == ["flash_attention"] else {}
    check_equal(dict(+launches), {f"kernel {name}": 1 for name in expected} | copies, "dispatches")


QWEN2 = Variant("qwen2", "qwen2", {"num_hidden_layers": 8}, quantization={"group_size": 32, "bits": 4})


@pytest.mark.parametrize("variant", [None, QWEN2], ids=["shipped", "qwen2"])
def test_a_decode_step_has_no_more_than_mlx_lm(variant: Variant | None, tmp_path: Path) -> None:
    checkpoint = (
        resolve_checkpoint(SHIPPED_MODEL) if variant is None else save(variant, build(variant), tmp_path)
    )
    for work, (ours, theirs) in count_steps(checkpoint).items():
        assert ours.total() <= theirs.total(), f"{work}: {ours - theirs} more, {theirs - ours} fewer"
        check_equal(ours["copy for a kernel"], 0, f"copies of what is cached for {work}")
