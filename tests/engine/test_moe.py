"""Mixtures of experts in the engine: whatever runs beside a request, it gets what it gets alone."""

from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest

from accelerated import engine_contests as module
from accelerated.accelerate import _chosen, best, best_operations
from kernel_runtime import self_check
from tests.engine.test_overlap import Endless
from tests.support.check import check_close, check_equal
from tests.support.checkpoints import MOE_VARIANTS, build, save
from tests.support.cpu_kernels import use_device
from tests.support.schedules import (
    MAX_SEQ_LEN,
    random_moe,
)
from tiny_llm import Engine, PrefixCachingBlockManager, SamplingParams, SchedulerConfig, load_moe_model
from tiny_llm.kernels.dispatch_grouped_matmul import dispatch_grouped_matmul, grouped_matmul_mlx
from tiny_llm.ops.experts import ExpertWeights, grouped_matmul_simple

pytestmark = pytest.mark.usefixtures("on_cpu")


def test_preempted_requests_and_shared_prefixes() -> None:
    """A pool of 9 blocks for three requests of 6, whose prompts begin alike."""
    prompts = [[*range(2, 13), end] for end in (20, 21, 22)]
    params = SamplingParams(max_tokens=12)

    def answers(blocks: PrefixCachingBlockManager, num_at_once: int) -> list[list[int]]:
        config = SchedulerConfig(7, num_at_once)
        with Engine(random_moe(), Endless(), config, MAX_SEQ_LEN, blocks) as engine:
            return [list(result.token_ids) for result in engine.generate(prompts, params)]

    alone = answers(PrefixCachingBlockManager(60, 4), 1)
    blocks = PrefixCachingBlockManager(9, 4, overcommit=True)
    check_equal(answers(blocks, 3), alone, "tokens of three requests at once")
    assert blocks.num_hit_tokens > 0


@pytest.mark.parametrize("variant", MOE_VARIANTS, ids=lambda variant: variant.name)
def test_the_fastest_operations_give_the_same(variant, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder = save(variant, build(variant), tmp_path)
    plain = load_moe_model(folder, mx.float32)
    operations = replace(best_operations(), grouped_matmul=dispatch_grouped_matmul)
    fast = load_moe_model(folder, mx.float32, operations)
    tokens = mx.random.randint(0, 160, (2, 11), key=mx.random.key(80))
    check_close(fast(tokens), plain(tokens), f"logits of {variant.name}", 1e-3)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("race", dispatch_grouped_matmul),
        ("own", dispatch_grouped_matmul),
        ("mlx", grouped_matmul_mlx),
        ("off", grouped_matmul_simple),
    ],
)
@pytest.mark.parametrize("device", [mx.cpu, mx.gpu], ids=["cpu", "gpu"])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
def test_the_best_product(
    dtype: mx.Dtype, device: mx.DeviceType, mode: str, expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINY_LLM_KERNELS", mode)
    use_device(device, monkeypatch)
    assert best(module.grouped_matmuls, dtype) is expected


def test_a_product_that_is_wrong_for_many_rows_is_not_used(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Such as MLX's on a Mac's GPU could be, which takes another path from 16 rows on."""

    def wrong_from_16(x: mx.array, experts: mx.array, weights: ExpertWeights) -> mx.array:
        return grouped_matmul_simple(x, experts, weights) * (1 if len(x) < 16 else 1.1)

    monkeypatch.setenv("TINY_LLM_KERNELS", "own")
    _chosen.cache_clear()
    self_check._notice_once.cache_clear()
    monkeypatch.setattr(module, "dispatch_grouped_matmul", wrong_from_16)
    assert best(module.grouped_matmuls, mx.float32) is grouped_matmul_simple
    _chosen.cache_clear()
    assert "dispatch_grouped_matmul differs" in capfd.readouterr().err
