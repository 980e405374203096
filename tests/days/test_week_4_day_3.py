"""Week 4 day 3: more than one process."""

import io
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

import tiny_llm
from accelerated.accelerate import best, best_operations
from accelerated.engine_contests import grouped_matmuls
from accelerated.pretrained import load_part
from scripts.course import ROOT
from scripts.hardware.memory import memory_use
from tests.support.check import check_close, check_equal, check_value_error, fail, normal
from tests.support.checkpoints import BASE_CONFIG, MOE_VARIANTS, VARIANTS, Variant, build, save
from tests.support.engines import drafting_engine, overlapping_engine
from tests.support.evaluations import is_waiting
from tests.support.ranks import LedEngine, ThreadRanks, check_everywhere, on_ranks, same_everywhere
from tiny_llm import (
    BlockManager,
    CostModel,
    Embedding,
    Engine,
    Follower,
    ForwardBatch,
    JoinedProjection,
    LeadingModel,
    Link,
    ModelConfig,
    PagedKvPool,
    QuantizedKvPool,
    Qwen3Model,
    SamplingParams,
    ScheduledTokens,
    SchedulerConfig,
    SchedulerOutput,
    Sequence,
    ShardedEmbedding,
    TinyKvFullCache,
    Watchdog,
    linear,
    received_bytes,
    shard_config,
    shard_tensors,
    step_seconds,
)
from tiny_llm.model.ranks import FRAME, OneRank
from tiny_llm.model.registry import load_checkpoint
from tiny_llm.model.sharded_loader import ShardedTensors, join
from tiny_llm.paging.forward_batch import RaggedKvCache
from tiny_llm.ranks import follower as follower_module
from tiny_llm.ranks import leading_model
from tiny_llm.ranks.follower import batch_of
from tiny_llm.ranks.message import Kind, from_message, receive, send, to_message
from tiny_llm.ranks.watchdog import FIRST_SECONDS
from tiny_llm.scheduling.block_manager import BlockTable

pytestmark = pytest.mark.usefixtures("on_cpu")
Numbers = np.ndarray[Any, Any]
num_ranks = pytest.mark.parametrize("N", [1, 2, 3], ids=lambda N: f"{N} ranks")

# --- task 1: split the checkpoint ---------------------------------------------------------------------------

CONFIG = {
    **BASE_CONFIG,
    "hidden_size": 252,
    "num_attention_heads": 18,
    "num_key_value_heads": 6,
    "intermediate_size": 330,
    "moe_intermediate_size": 42,
    "vocab_size": 174,
    "num_experts": 7,
    "model_type": "qwen3_moe",
    "mlp_only_layers": [0],
}


@num_ranks
def test_task_1_sizes_of_a_part(N: int) -> None:
    expected = CONFIG | {
        "num_attention_heads": 18 // N,
        "num_key_value_heads": 6 // N,
        "intermediate_size": 330 // N,
        "moe_intermediate_size": 42 // N,
    }
    check_equal(shard_config(CONFIG, N), expected, f"config.json of a part of {N}")


def test_task_1_a_new_dict() -> None:
    part = shard_config(CONFIG, 1)
    part["vocab_size"] = 1
    check_equal(CONFIG["vocab_size"], 174, "vocab_size of the whole config after the part's was changed")


@pytest.mark.parametrize("head_dim", [{}, {"head_dim": None}], ids=["missing", "null"])
def test_task_1_head_dim_is_that_of_the_whole_model(head_dim: dict[str, None]) -> None:
    config = {key: value for key, value in CONFIG.items() if key != "head_dim"} | head_dim
    check_equal(shard_config(config, 3)["head_dim"], 252 // 18, "head_dim of a part")


def test_task_1_sizes_that_a_checkpoint_lacks() -> None:
    config = {"hidden_size": 64, "num_attention_heads": 4, "head_dim": 8, "moe_intermediate_size": None}
    expected = config | {"num_attention_heads": 2}
    check_equal(shard_config(config, 2), expected, "a part of a config with few sizes")


@pytest.mark.parametrize(
    "key",
    [
        "num_attention_heads",
        "num_key_value_heads",
        "intermediate_size",
        "moe_intermediate_size",
        "hidden_size",
        "vocab_size",
    ],
)
def test_task_1_a_size_that_cannot_be_shared(key: str) -> None:
    config = CONFIG | {key: 6 * 35 + 1}
    with check_value_error(key=key, size=211, num_ranks=3):
        shard_config(config, 3)


SPLIT = {
    "model.embed_tokens.weight": (12, 6),
    "lm_head.weight": (12, 6),
    "lm_head.scales": (12, 18),
    "model.layers.0.self_attn.q_proj.weight": (18, 6),
    "model.layers.0.self_attn.q_proj.bias": (18,),
    "model.layers.1.self_attn.k_proj.scales": (6, 12),
    "model.layers.1.self_attn.k_proj.biases": (6, 12),
    "model.layers.1.self_attn.v_proj.weight": (6, 18),
    "model.layers.1.self_attn.o_proj.weight": (12, 6),
    "model.layers.1.self_attn.o_proj.bias": (12,),
    "model.layers.10.mlp.gate_proj.weight": (30, 6),
    "model.layers.10.mlp.up_proj.biases": (30, 12),
    "model.layers.10.mlp.down_proj.weight": (12, 18),
    "model.layers.2.mlp.switch_mlp.up_proj.weight": (30, 18, 12),
    "model.layers.2.mlp.switch_mlp.down_proj.scales": (30, 6, 18),
    "model.layers.2.mlp.experts.5.gate_proj.weight": (18, 6),
}
"""Each size is a multiple of 6, so that 2 and 3 parts of any axis are equal."""
WHOLE = {
    "model.norm.weight": (6,),
    "model.layers.0.input_layernorm.weight": (6,),
    "model.layers.0.self_attn.q_norm.weight": (6,),
    "model.layers.2.mlp.gate.weight": (6, 12),
}


def tensors_of(shapes: dict[str, tuple[int, ...]]) -> dict[str, mx.array]:
    return {name: normal(*shape, seed=seed) for seed, (name, shape) in enumerate(shapes.items())}


@num_ranks
def test_task_1_parts_of_tensors(N: int) -> None:
    tensors = tensors_of(SPLIT | WHOLE)
    parts = [shard_tensors(tensors, rank, N) for rank in range(N)]
    for name, shape in SPLIT.items():
        axis = len(shape) - 2 if len(shape) > 1 else 0
        whole = np.array(tensors[name])
        for rank, part in enumerate(parts):
            expected = np.split(whole, N, axis)[rank]
            what = f"{name} of rank {rank}, from {list(shape)}"
            check_equal(list(part[name].shape), list(expected.shape), f"shape of {what}")
            check_equal(np.array(part[name]).tolist(), expected.tolist(), what)
    for name in WHOLE:
        for rank, part in enumerate(parts):
            check_equal(
                np.array(part[name]).tolist(), np.array(tensors[name]).tolist(), f"{name} of rank {rank}"
            )
    check_equal(sorted(parts[0]), sorted(tensors), "names of a part's tensors")


def test_task_1_parts_of_codes() -> None:
    name = "model.layers.0.mlp.down_proj.weight"
    words = mx.arange(24, dtype=mx.uint32).reshape(6, 4)
    part = shard_tensors({name: words}, 1, 3)[name]
    check_equal(part.dtype, mx.uint32, "type of a part of packed weights")
    check_equal(part.tolist(), words[2:4].tolist(), "rows of rank 1 of 3")


def test_task_1_a_part_frees_the_rest(tmp_path: Path) -> None:
    """What mx.load returns is read when it is used. A slice of it keeps all of it in memory."""
    name, file = "model.layers.0.mlp.up_proj.weight", str(tmp_path / "model.safetensors")
    mx.save_safetensors(file, {name: mx.zeros((1024, 257))})
    with memory_use() as memory:
        part = shard_tensors(mx.load(file), 0, 4)  # type: ignore[arg-type]
        mx.eval(part)
    if memory.held > 1024 * 257 * 4 // 2:
        fail(
            f"memory that a quarter of a tensor of {1024 * 257 * 4:,} bytes holds: {memory.held:,} bytes",
            "A slice refers to the array that it was cut from. Make a contiguous copy of it.",
        )


# --- task 2: join -------------------------------------------------------------------------------------------


@num_ranks
@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 1, 3)], ids=str)
def test_task_2_join(N: int, shape: tuple[int, ...]) -> None:
    parts = [np.array(normal(*shape, seed=rank)) for rank in range(N)]

    def joined(ranks: ThreadRanks) -> Numbers:
        return np.array(join(mx.array(parts[ranks.rank]), ranks))

    expected = np.concatenate(parts, axis=-1)
    check_everywhere(on_ranks(N, joined), expected, f"{N} joined parts of {list(shape)}", tolerance=0.0)


@pytest.mark.parametrize("dtype", [mx.float16, mx.float32], ids=["float16", "float32"])
def test_task_2_join_keeps_the_type(dtype: mx.Dtype) -> None:
    types = on_ranks(2, lambda ranks: str(join(mx.zeros((2, 3), dtype), ranks).dtype))
    check_equal(types, [str(dtype)] * 2, "types of the joined arrays")


@num_ranks
@pytest.mark.parametrize("is_input_split", [True, False], ids=["input split", "whole input"])
def test_task_2_a_joined_projection(N: int, is_input_split: bool) -> None:
    x, weight = np.array(normal(2, 5, 12, seed=1)), np.array(normal(18, 12, seed=2))

    def project(ranks: ThreadRanks) -> Numbers:
        own = mx.array(np.split(weight, N)[ranks.rank])
        given = np.split(x, N, axis=-1)[ranks.rank] if is_input_split else x
        projection = JoinedProjection(lambda inputs: linear(inputs, own), ranks, is_input_split)
        return np.array(projection(mx.array(given)))

    check_everywhere(on_ranks(N, project), x @ weight.T, "projection")


ROWS = [0, 3, 4, 5, 7, 8, 11]
"""The first and the last of each part of 12 rows, for 2 and 3 ranks, and others."""


@num_ranks
@pytest.mark.parametrize("dtype", [mx.int32, mx.uint32, mx.int64], ids=["int32", "uint32", "int64"])
def test_task_2_look_up_in_parts(N: int, dtype: mx.Dtype) -> None:
    table = np.arange(1.0, 13.0, dtype=np.float32)[:, None] * np.ones(5, np.float32)

    def look_up(ranks: ThreadRanks) -> Numbers:
        own = Embedding(12 // N, 5, mx.array(np.split(table, N)[ranks.rank]))
        return np.array(ShardedEmbedding(own, 12 // N, ranks)(mx.array([ROWS, ROWS[::-1]], dtype)))

    expected = table[np.array([ROWS, ROWS[::-1]])]
    what = f"embeddings of tokens {ROWS}, and of the same reversed, whose entries are token + 1,"
    check_everywhere(on_ranks(N, look_up), expected, what, tolerance=0.0)


def test_task_2_one_exchange_per_lookup() -> None:
    def look_up(ranks: ThreadRanks) -> list[Any]:
        embedding = ShardedEmbedding(Embedding(4, 5, normal(4, 5, seed=ranks.rank)), 4, ranks)
        mx.eval(embedding(mx.array([[1, 6, 7]])))
        return ranks.exchanged

    check_equal(on_ranks(2, look_up)[1], [("all_sum", (1, 3, 5))], "what a lookup exchanges")


def test_task_2_a_lookup_keeps_its_type() -> None:
    def look_up(ranks: ThreadRanks) -> str:
        own = Embedding(4, 5, normal(4, 5, seed=1).astype(mx.float16))
        return str(ShardedEmbedding(own, 4, ranks)(mx.array([[1, 6]])).dtype)

    check_equal(on_ranks(2, look_up), [str(mx.float16)] * 2, "types of embeddings")


@num_ranks
def test_task_2_logits_of_the_whole_vocabulary(N: int) -> None:
    table, x = np.array(normal(12, 5, seed=3)), np.array(normal(2, 1, 5, seed=4))

    def logits(ranks: ThreadRanks) -> Numbers:
        own = Embedding(12 // N, 5, mx.array(np.split(table, N)[ranks.rank]))
        embedding = ShardedEmbedding(own, 12 // N, ranks)
        return np.array(embedding.as_linear(mx.array(x)))

    check_everywhere(on_ranks(N, logits), x @ table.T, "logits")


# --- task 3: a part that is a model -------------------------------------------------------------------------

SHAPES = {"q_proj": (6, 8), "up_proj": (6, 8), "o_proj": (8, 6), "down_proj": (8, 6), "lm_head": (20, 8)}
"""(out, in) of what a part computes: half of 12 heads or hidden units, all of E = 8 and V = 20."""


@pytest.mark.parametrize("kind", list(SHAPES))
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
def test_task_3_projections(kind: str, bias: bool) -> None:
    num_outputs, num_inputs = SHAPES[kind]
    is_input_split = kind in ("o_proj", "down_proj")
    is_joined = is_input_split or kind == "lm_head"
    layer = kind if kind == "lm_head" else f"model.layers.1.mlp.{kind}"
    out, inputs = (
        (num_outputs if is_joined else 2 * num_outputs),
        (2 * num_inputs if is_input_split else num_inputs),
    )
    weight, added = np.array(normal(out, inputs, seed=5)), np.array(normal(out, seed=6))
    x = np.array(normal(3, 2, inputs, seed=7))

    def project(ranks: ThreadRanks) -> Numbers:
        whole = {f"{layer}.weight": mx.array(weight)} | ({f"{layer}.bias": mx.array(added)} if bias else {})
        tensors = ShardedTensors(shard_tensors(whole, ranks.rank, 2), None, None, ranks=ranks)
        projection = tensors.take_projection(layer, num_outputs, num_inputs, bias)
        given = np.split(x, 2, axis=-1)[ranks.rank] if is_input_split else x
        found = np.array(projection(mx.array(given)))
        tensors.check_all_used(False)
        return found

    parts = on_ranks(2, project)
    expected = x @ weight.T + (added if bias else 0)
    for rank, part in enumerate(parts):
        own = expected if is_joined else np.split(expected, 2, axis=-1)[rank]
        check_close(mx.array(part), own, f"outputs of {kind} on rank {rank}")


def test_task_3_a_router_is_whole() -> None:
    weight = np.array(normal(7, 8, seed=8))

    def project(ranks: ThreadRanks) -> Numbers:
        whole = {"model.layers.1.mlp.gate.weight": mx.array(weight)}
        tensors = ShardedTensors(shard_tensors(whole, ranks.rank, 2), None, None, ranks=ranks)
        return np.array(tensors.take_projection("model.layers.1.mlp.gate", 7, 8, False)(mx.eye(8)))

    check_everywhere(on_ranks(2, project), weight.T, "outputs of the router")


def test_task_3_the_embedding() -> None:
    table = np.array(normal(20, 8, seed=9))

    def look_up(ranks: ThreadRanks) -> Numbers:
        whole = {"model.embed_tokens.weight": mx.array(table)}
        tensors = ShardedTensors(shard_tensors(whole, ranks.rank, 2), None, None, ranks=ranks)
        embedding = tensors.take_embedding("model.embed_tokens", 20, 8)
        return np.array(embedding(mx.array([[0, 9, 10, 19]])))

    expected = table[[0, 9, 10, 19]][None]
    check_everywhere(on_ranks(2, look_up), expected, "embeddings of tokens 0, 9, 10 and 19", tolerance=0.0)


THREE = {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 192, "intermediate_size": 384}
"""Sizes for 3 ranks, in groups of 32."""
OF_THREE = [
    Variant("of-three", "qwen3", THREE | {"vocab_size": 159}, quantization={"group_size": 32, "bits": 4}),
    Variant("of-three-untied", "llama", THREE | {"vocab_size": 159, "tie_word_embeddings": False}),
]
BY_NAME = {variant.name: (variant, 2) for variant in [*VARIANTS, *MOE_VARIANTS]} | {
    variant.name: (variant, 3) for variant in OF_THREE
}
TOKENS = np.random.default_rng(11).integers(0, 159, (2, 13))


@pytest.mark.parametrize("name", list(BY_NAME))
def test_task_3_logits_of_every_family(name: str, tmp_path: Path) -> None:
    variant, N = BY_NAME[name]
    folder = save(variant, build(variant), tmp_path)
    (expected,) = on_ranks(1, lambda _: np.array(whole_model(folder)(mx.array(TOKENS))))
    parts = on_ranks(N, lambda ranks: logits_and_exchanges(folder, ranks))
    found = same_everywhere([logits for logits, _ in parts], "logits")
    check_equal(list(found.shape), list(expected.shape), "shape of the logits")
    largest = np.abs(found - expected).max() / np.abs(expected).max()
    if is_packed_alike(variant):
        check_equal(
            largest, 0.0, f"largest difference of {name}'s logits from those of one process, as a share"
        )
    elif largest > 1e-3:
        fail(f"logits of {name} differ from those of one process by up to {largest:.0%}")
    num_layers = variant.config["num_hidden_layers"]
    if variant.family != "qwen3_moe":
        check_equal(parts[0][1], 4 * num_layers + 2, "number of exchanges in a forward pass")


def whole_model(folder: Path) -> Qwen3Model:
    operations = replace(best_operations(), grouped_matmul=best(grouped_matmuls, mx.float32))
    return load_checkpoint(folder, mx.float32, operations)


def logits_and_exchanges(folder: Path, ranks: ThreadRanks) -> tuple[Numbers, int]:
    model = load_part(folder, ranks, mx.float32)
    return np.array(model(mx.array(TOKENS))), len(ranks.exchanged)


def is_packed_alike(variant: Variant) -> bool:
    """Whether only kernels of the course multiply, each output by itself, as a BLAS may not."""
    quantization = variant.quantization
    return quantization is not None and False not in quantization.values()


# --- task 4: one array --------------------------------------------------------------------------------------

ARRAYS = [
    mx.array([[7], [5], [3]], mx.int32),
    mx.zeros(0, mx.int32),
    mx.array([11, 2], mx.uint32),
    mx.zeros((2, 0), mx.int32),
    mx.array([[1, 2, 4], [8, 16, 32]], mx.int64),
]


def test_task_4_the_order_of_the_integers() -> None:
    found = to_message(ARRAYS)
    check_equal(found.dtype, mx.int32, "type of the message")
    shapes = [5, 2, 3, 1, 1, 0, 1, 2, 2, 2, 0, 2, 2, 3]
    check_equal(found.tolist(), [*shapes, 7, 5, 3, 11, 2, 1, 2, 4, 8, 16, 32], "integers of the message")


@pytest.mark.parametrize(
    "arrays", [ARRAYS, ARRAYS[:1], ARRAYS[1:2], []], ids=["five", "one", "empty", "none"]
)
def test_task_4_there_and_back(arrays: list[mx.array]) -> None:
    found = from_message(np.array(to_message(arrays)))
    check_equal([x.shape for x in found], [x.shape for x in arrays], "shapes of the arrays")
    check_equal([x.tolist() for x in found], [x.tolist() for x in arrays], "entries of the arrays")


def test_task_4_a_message_is_lazy() -> None:
    message = to_message([mx.array([3, 4]) * 2, mx.zeros(2 * FRAME, mx.int32)])
    check_equal(is_waiting(message), True, "whether a message is still to be computed after to_message")
    sent = send(message, RecordingRanks())
    check_equal(is_waiting(sent), True, "whether a message is still to be sent after send")


class RecordingRanks:
    """A rank that is alone, and keeps what it sends."""

    rank = 0
    size = 2

    def __init__(self) -> None:
        self.sent: list[mx.array] = []

    def all_sum(self, x: mx.array) -> mx.array:
        self.sent.append(x)
        return x * 1

    def all_gather(self, x: mx.array) -> mx.array:
        fail("a message is gathered: everyone would send a frame; sum it, and let the others add zeros")


LENGTHS = [1, 17, FRAME - 2, FRAME - 1, FRAME, 2 * FRAME + 3]


@pytest.mark.parametrize("length", LENGTHS)
def test_task_4_messages_of_all_lengths(length: int) -> None:
    numbers = np.arange(3, 3 + length, dtype=np.int32)

    def exchange(ranks: ThreadRanks) -> tuple[list[int], list[Any]]:
        if ranks.rank == 0:
            mx.eval(send(mx.array(numbers), ranks))
            return [], ranks.exchanged
        return receive(ranks).tolist(), ranks.exchanged

    def both(ranks: ThreadRanks) -> tuple[list[int], list[Any]]:
        exchange(ranks)
        ranks.exchanged.clear()
        return exchange(ranks)

    first = on_ranks(3, exchange)
    for rank in (1, 2):
        check_equal(first[rank][0], numbers.tolist(), f"what rank {rank} receives of {length} integers")
    expected = [("all_sum", (FRAME,))] + [("all_sum", (length + 1 - FRAME,))] * (length + 1 > FRAME)
    check_equal(first[0][1], expected, f"exchanges of a message of {length} integers")
    check_equal(on_ranks(3, both)[1][0], numbers.tolist(), "what rank 1 receives the second time")


def test_task_4_the_rest_waits_for_the_frame() -> None:
    """Without that, MLX might exchange the two in another order than the other ranks do."""
    order: list[str] = []

    class Ordered(RecordingRanks):
        def all_sum(self, x: mx.array) -> mx.array:
            order.append("frame" if x.size == FRAME else "rest")
            self.sent.append(x)
            return mx.array(np.array(x) * 0 - 1) if x.size == FRAME else x * 1

    ranks = Ordered()
    returned = send(mx.zeros(FRAME + 5, mx.int32), ranks)
    check_equal(order, ["frame", "rest"], "order of the exchanges")
    text = mx_graph(returned)
    if "Depends" not in text:
        fail(
            "what `send` returns can be evaluated although the frame has not been exchanged",
            "Let the rest depend on the sum of the frame: mx.depends([rest], [sent]).",
        )


def mx_graph(x: mx.array) -> str:
    """The operations that x depends on, as MLX draws them."""
    text = io.StringIO()
    mx.export_to_dot(text, x)
    return text.getvalue()


def test_task_4_a_sender_that_has_gone() -> None:
    """A ring whose peer is lost may sum up to zeros."""
    ranks = SimpleNamespace(rank=1, size=2, all_sum=lambda x: x, all_gather=lambda x: x[None])
    with suppress(ConnectionError):
        found = receive(ranks)  # type: ignore[arg-type]
        fail(f"a sum of zeros: expected a ConnectionError, since rank 0 has ended; received {found.tolist()}")


# --- task 5: lead and follow --------------------------------------------------------------------------------

SERVED = Variant(
    "served",
    "qwen3",
    {"num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 160},
    quantization={"group_size": 32, "bits": 8},
)
THREE_SERVED = Variant(
    "three", "qwen3", THREE | {"vocab_size": 159}, quantization={"group_size": 32, "bits": 8}
)
KINDS = {"in turn": Engine, "overlapped": overlapping_engine, "with drafts": drafting_engine}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(SERVED, build(SERVED), tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def served_by_three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(THREE_SERVED, build(THREE_SERVED), tmp_path_factory.mktemp("three"))


class SilentPart(Qwen3Model):
    """A part that computes nothing, for tests of what is sent."""

    def __init__(self) -> None:
        config = ModelConfig.from_dict({**BASE_CONFIG, "model_type": "qwen3"})
        super().__init__(config, Embedding(1, 3, mx.zeros((1, 3))), [], lambda x: x, lambda x: x)


@contextmanager
def messages(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[Any]]]:
    """What a leading model sends, decoded when it is sent."""
    sent: list[list[Any]] = []

    def keep(integers: mx.array, ranks: object) -> mx.array:
        sent.append([x.tolist() for x in from_message(np.array(integers))])
        return integers

    monkeypatch.setattr(leading_model, "send", keep)
    yield sent


def leading(limit: float = 2.5) -> LeadingModel:
    watchdog = Watchdog(SchedulerConfig(), 64)
    watchdog.limit = limit
    return LeadingModel(SilentPart(), RecordingRanks(), watchdog)


def caches_of(pool: Any, batch: ForwardBatch) -> list[Any]:
    return [RaggedKvCache(pool, 0, batch)]


def a_batch(pool: PagedKvPool) -> ForwardBatch:
    entries = (
        ScheduledTokens(Sequence(4, [9, 8, 7, 6, 5]), 1, 3, False),
        ScheduledTokens(Sequence(2, [3, 2]), 1, 1, True),
    )
    return ForwardBatch.of(SchedulerOutput(entries), {4: BlockTable([5, 1]), 2: BlockTable([3])}, pool)


def test_task_5_what_a_step_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    model, pool = leading(2.5), PagedKvPool(1, 6, 4)
    batch = a_batch(pool)
    with messages(monkeypatch) as sent:
        model.hidden_states(batch.token_ids, batch.positions, caches_for(model, pool, batch))
    pool_message, step = sent
    check_equal(pool_message, [[int(Kind.POOL)], [6, 4, 0]], "the first message: POOL, and the pool's sizes")
    check_equal(step[0], [int(Kind.STEP), 2500], "first array of the second: STEP, and the limit in ms")
    for field, found in zip(fields(ForwardBatch), step[1:], strict=True):
        check_equal(found, mx.array(getattr(batch, field.name)).tolist(), f"{field.name} of the step")


def caches_for(model: LeadingModel, pool: Any, batch: ForwardBatch) -> Any:
    """The caches of a model without layers: only their first one is looked at."""
    caches = caches_of(pool, batch)
    model.layers = [lambda x, offset, cache: x]  # type: ignore[list-item]
    return caches


def test_task_5_a_pool_is_announced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = leading()
    with messages(monkeypatch) as sent:
        for pool in (first := PagedKvPool(1, 6, 4), first, PagedKvPool(1, 6, 4), PagedKvPool(1, 7, 8)):
            batch = a_batch(pool)
            model.hidden_states(batch.token_ids, batch.positions, caches_for(model, pool, batch))
    kinds = [Kind(each[0][0]).name for each in sent]
    expected = ["POOL", "STEP", "STEP", "POOL", "STEP", "POOL", "STEP"]
    check_equal(
        kinds, expected, "kinds of the messages of four steps, the third and fourth with a new pool each"
    )
    check_equal(sent[5][1], [7, 8, 0], "sizes of the last pool")


@pytest.mark.parametrize("kind", [None, TinyKvFullCache], ids=["no cache", "TinyKvFullCache"])
def test_task_5_caches_without_a_pool(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = leading()
    model.layers = [lambda x, offset, cache: x]  # type: ignore[list-item]
    caches = kind and [kind()]
    with messages(monkeypatch) as sent:
        with check_value_error():
            model.hidden_states(mx.array([[1]]), 0, caches)
        check_equal(sent, [], "messages of a refused step")


def test_task_5_a_step_is_computed_after_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    model, pool = leading(), PagedKvPool(1, 6, 4)
    batch = a_batch(pool)
    seen: list[mx.array] = []
    model.embedding = lambda tokens: (seen.append(tokens), mx.zeros((4, 1, 3)))[1]  # type: ignore[assignment, func-returns-value]
    monkeypatch.setattr(leading_model, "send", lambda integers, ranks: mx.abs(integers))
    model.hidden_states(batch.token_ids, batch.positions, caches_for(model, pool, batch))
    if "Abs" not in mx_graph(seen[0]):
        fail(
            "the model computes a step without waiting for its message to leave",
            "Let the token ids depend on what `send` returns: mx.depends([tokens], [sent]).",
        )


def test_task_5_a_batch_from_its_arrays() -> None:
    batch = a_batch(PagedKvPool(1, 6, 4))
    arrays = [np.array(mx.array(getattr(batch, field.name))) for field in fields(ForwardBatch)]
    found = batch_of(arrays)
    check_equal(type(found), ForwardBatch, "type of the batch")
    check_equal(found.positions, batch.positions, "positions")
    for field in fields(ForwardBatch):
        expected = mx.array(getattr(batch, field.name)).tolist()
        check_equal(mx.array(getattr(found, field.name)).tolist(), expected, f"{field.name} of the batch")


def test_task_5_a_follower_stops_and_keeps_to_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages: a pool, a step with a limit of 1.5 s, another pool, stop."""
    batch = a_batch(PagedKvPool(1, 6, 4))
    arrays = [mx.array(getattr(batch, field.name)) for field in fields(ForwardBatch)]
    queue = [
        to_message([mx.array([Kind.POOL]), mx.array([6, 4, 0])]),
        to_message([mx.array([Kind.STEP, 1500]), *arrays]),
        to_message([mx.array([Kind.POOL]), mx.array([9, 2, 8])]),
        to_message([mx.array([Kind.STOP])]),
    ]
    happened: list[Any] = []

    @contextmanager
    def guard(seconds: float) -> Iterator[None]:
        happened.append(("limit", seconds))
        yield
        happened.append("in time")

    monkeypatch.setattr(follower_module, "receive", lambda ranks: np.array(queue.pop(0)))
    monkeypatch.setattr(Watchdog, "guard", staticmethod(guard))
    monkeypatch.setattr(Follower, "compute", lambda self, found: happened.append(found.positions))
    monkeypatch.setattr(Follower, "make_pool", lambda self, *sizes: happened.append(sizes))
    Follower(SilentPart(), RecordingRanks()).run()
    expected = [(6, 4, 0), ("limit", 1.5), batch.positions, "in time", (9, 2, 8)]
    check_equal(happened, expected, "what a follower does")
    check_equal(len(queue), 0, "messages left after STOP")


@pytest.mark.parametrize("is_final", [False, True], ids=["a chunk", "a last chunk"])
def test_task_5_what_a_follower_evaluates(
    is_final: bool, served: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = Follower(load_part(served, OneRank(), mx.float32), OneRank())
    follower.make_pool(11, 8, 0)
    assert follower.runner is not None
    entry = ScheduledTokens(Sequence(0, PROMPTS[0]), 0, 7, is_final)
    batch = ForwardBatch.of(SchedulerOutput((entry,)), {0: BlockTable([4])}, follower.runner.pool)
    evaluated: list[mx.array] = []
    original = mx.eval

    def recorded(*arrays: Any) -> None:
        evaluated.extend(x for _, x in tree_flatten(list(arrays)))
        original(*arrays)

    monkeypatch.setattr(mx, "eval", recorded)
    follower.compute(batch)
    missing = [x.shape for x in follower.runner.pool.state if not any(x is each for each in evaluated)]
    check_equal(missing, [], "shapes of the pool's arrays that are not evaluated")
    logits = [x.shape for x in evaluated if x.shape[-1] == SERVED.config["vocab_size"]]
    check_equal(logits, [(1, 1, 160)] * is_final, "shapes of the logits that are evaluated")


class Tokens:
    """A tokenizer for prompts that are token ids already."""

    eos_token_ids = frozenset({45, 68})  # which end an answer of each model below
    bos_token = None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        raise AssertionError("prompts are token ids")

    def decode(self, token_ids: Any, **_: Any) -> str:
        return " ".join(map(str, token_ids))


PROMPTS = [
    [(7 * i + 3 * n + 5) % 150 + 2 for i in range(length)] for n, length in enumerate((19, 5, 33, 11, 2))
]
PARAMS: list[dict[str, Any]] = [
    {"max_tokens": 9},
    {"max_tokens": 14, "temperature": 0.8, "seed": 5},
    {"max_tokens": 6, "temperature": 1.3, "top_k": 7, "seed": 9},
    {"max_tokens": 17},
    {"max_tokens": 3, "logprobs": 2},
]


def answers(make: Callable[..., Engine], model: object, kv_bits: int | None = None, budget: int = 16) -> Any:
    """What an engine answers, with few blocks for many requests."""
    config, blocks = SchedulerConfig(budget, 4), BlockManager(24, 8)
    with make(model, Tokens(), config, 64, blocks, kv_bits=kv_bits) as engine:
        results = engine.generate(PROMPTS, [SamplingParams(**params) for params in PARAMS])
    return [list(result.token_ids) for result in results]


@pytest.fixture
def no_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no follower end the process of the tests."""
    monkeypatch.setattr(Watchdog, "guard", staticmethod(nullcontext))


@pytest.mark.usefixtures("no_guard")
@pytest.mark.parametrize("kv_bits", [None, 8, 4], ids=["floats", "8 bits", "4 bits"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_task_5_answers_are_those_of_one_process(kind: str, kv_bits: int | None, served: Path) -> None:
    expected = answers(KINDS[kind], whole_model(served), kv_bits)
    led = LedEngine(KINDS[kind], lambda ranks: load_part(served, ranks, mx.float32))
    check_equal(answers(led, None, kv_bits), expected, f"answers of {kind} on two ranks")


@pytest.mark.usefixtures("no_guard")
@pytest.mark.parametrize("budget", [4, 64])
def test_task_5_three_ranks(budget: int, served_by_three: Path) -> None:
    expected = answers(Engine, whole_model(served_by_three), 8, budget)
    led = LedEngine(Engine, lambda ranks: load_part(served_by_three, ranks, mx.float32), 3)
    check_equal(answers(led, None, 8, budget), expected, f"answers of three ranks, {budget} tokens per step")


@pytest.mark.usefixtures("no_guard")
@pytest.mark.parametrize("kv_bits", [None, 4], ids=["floats", "4 bits"])
def test_task_5_blocks_are_split_by_heads(kv_bits: int | None, served: Path) -> None:
    led = LedEngine(Engine, lambda ranks: load_part(served, ranks, mx.float32))
    with led(None, Tokens(), SchedulerConfig(16, 2), 64, BlockManager(11, 8), kv_bits=kv_bits) as engine:
        engine.generate([PROMPTS[0]], SamplingParams(max_tokens=3))
        runner = led.followers[1].runner
        assert runner is not None
        pools = {"rank 0": engine.runner.pool, "rank 1": runner.pool}  # type: ignore[attr-defined]
        for name, pool in pools.items():
            kind = QuantizedKvPool if kv_bits else PagedKvPool
            check_equal(type(pool), kind, f"kind of the pool of {name}")
            check_equal(
                (pool.num_layers, pool.num_blocks, pool.block_size), (2, 11, 8), f"sizes of {name}'s pool"
            )
            heads = [x.shape[-2] for x in pool.state]
            check_equal(set(heads), {1}, f"heads that {name} stores, of 2 in the model")
        if isinstance(runner.pool, QuantizedKvPool):
            check_equal(runner.pool.kv_bits, kv_bits, "kv_bits of the pool of rank 1")


# --- task 6: a rank that hangs ------------------------------------------------------------------------------


def steps(cost: CostModel, sizes: list[tuple[int, int]]) -> Iterator[tuple[SchedulerOutput, float]]:
    for start, count in sizes:
        entry = ScheduledTokens(Sequence(0, [1] * (start + count)), start, count, True)
        output = SchedulerOutput((entry,))
        yield output, cost.seconds(output)


COST = CostModel(0.02, 0.003, 0.00001)
SIZES = [(17 * i % 61, 1 + 7 * i % 13) for i in range(16)]


def test_task_6_the_largest_step() -> None:
    watchdog = Watchdog(SchedulerConfig(50, 8), 200)
    check_equal(round(watchdog.largest_seconds(COST), 9), 0.27, "seconds of 50 tokens behind 200 each")
    watchdog = Watchdog(SchedulerConfig(50, 8, max_num_prefill_only_tokens=300), 200)
    check_equal(round(watchdog.largest_seconds(COST), 9), 1.52, "seconds of 300 tokens behind 200 each")


def test_task_6_limits_before_and_after_16_steps() -> None:
    watchdog = Watchdog(SchedulerConfig(50, 8), 200, factor=30.0, at_least=2.0)
    check_equal(watchdog.limit, FIRST_SECONDS, "limit before the first step")
    for number, (output, seconds) in enumerate(steps(COST, SIZES), 1):
        watchdog.record(output, seconds)
        watchdog.record(SchedulerOutput(()), 500.0)
        if number < 16:
            check_equal(watchdog.limit, FIRST_SECONDS, f"limit after {number} steps")
    check_equal(round(watchdog.limit, 6), 8.1, "limit after 16 steps: 30 times the largest step")


def test_task_6_the_least_limit() -> None:
    watchdog = Watchdog(SchedulerConfig(50, 8), 200, at_least=6.5)
    for output, seconds in steps(COST, SIZES):
        watchdog.record(output, seconds)
    check_equal(watchdog.limit, 6.5, "limit where 20 times the largest step are 5.4 seconds")


def test_task_6_the_largest_limit() -> None:
    watchdog = Watchdog(SchedulerConfig(50, 8), 200, factor=500.0)
    for output, seconds in steps(COST, SIZES):
        watchdog.record(output, seconds)
    check_equal(watchdog.limit, FIRST_SECONDS, "limit where 500 times the largest step are 135 seconds")


def test_task_6_costs_change() -> None:
    watchdog = Watchdog(SchedulerConfig(50, 8), 200, factor=30.0, at_least=2.0)
    slower = CostModel(0.2, 0.03, 0.0001)
    for cost in (COST, *[slower] * 16):
        for output, seconds in steps(cost, SIZES):
            watchdog.record(output, seconds)
    check_equal(round(watchdog.limit, 6), 81.0, "limit after 256 slower steps, which replace the first 16")


GUARDED = """
import sys, time
from contextlib import suppress
sys.path[:0] = {folders}
from scripts.packages import choose_package
choose_package(reference={reference})
from tiny_llm import Watchdog
with Watchdog.guard({limit}):
    time.sleep({seconds})
with suppress(ValueError), Watchdog.guard({limit}):
    raise ValueError
time.sleep(2 * {limit})
print("alive")
"""


@pytest.mark.parametrize(("seconds", "code"), [(0.0, 0), (5.0, 1)], ids=["in time", "too late"])
def test_task_6_a_guarded_block(seconds: float, code: int, request: pytest.FixtureRequest) -> None:
    Watchdog.guard(60.0)  # not entered, but an unwritten one says so
    reference = request.config.getoption("--ref")
    folders = [str(Path(tiny_llm.__file__).parents[1]), str(ROOT)]
    program = GUARDED.format(folders=folders, reference=reference, limit=0.5, seconds=seconds)
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    what = f"a process whose limit is 0.5 s, with a block that takes {seconds:g} s, and one that fails"
    check_equal(result.returncode, code, f"exit code of {what}")
    check_equal("alive" in result.stdout, code == 0, f"whether anything follows in {what}")
    if code and "File" not in result.stderr:
        fail(f"the watchdog doesn't say where the process hangs: {result.stderr!r}")


# --- task 7: when it pays -----------------------------------------------------------------------------------

SMALL = ModelConfig("qwen3", 192, 6, 512, 6, 2, 64, 4096, 2048)


@pytest.mark.parametrize(
    ("N", "T", "R", "size", "expected"),
    [
        (1, 8, 8, 4, 0.0),
        (2, 1, 0, 4, 4 * (384 + 6 * 1280) / 2),
        (2, 8, 3, 4, 4 * (8 * (384 + 6 * 1280) + 3 * 4096) / 2),
        (4, 8, 3, 2, 2 * (8 * (384 + 6 * 1280) + 3 * 4096) * 3 / 4),
        (2, 0, 0, 4, 0.0),
    ],
)
def test_task_7_bytes(N: int, T: int, R: int, size: int, expected: float) -> None:
    check_equal(received_bytes(SMALL, N, T, R, size), expected, f"bytes that one of {N} ranks receives")


def test_task_7_seconds_of_a_step() -> None:
    link = Link(latency=2e-5, bandwidth=1e9)
    check_equal(step_seconds(SMALL, 0.3, 1, 1e6, link), 0.3, "seconds on one machine")
    expected = 0.3 / 3 + 26 * 2e-5 + 1e6 / 1e9
    check_equal(
        round(step_seconds(SMALL, 0.3, 3, 1e6, link), 9), round(expected, 9), "seconds on three machines"
    )
