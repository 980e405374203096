"""The cases of `pdm run compare` for week 4 day 3: one rank of two, without the other."""

from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np

from scripts.compare.differences import Tree
from scripts.compare.inputs import ByteTokenizer, normal, small_model, token_ids
from scripts.compare.library import Case, Library

Numbers = np.ndarray[Any, Any]


class Twins:
    """Rank 1 of two, of which rank 0 always brings the same array."""

    rank = 1
    size = 2

    def all_sum(self, x: mx.array) -> mx.array:
        """Twice x."""
        return 2 * x

    def all_gather(self, x: mx.array) -> mx.array:
        """[2, ...]"""
        return mx.stack([x, x])


def sharded(tiny: Library) -> Tree:
    """One of four parts of a few tensors, 24 MB in all."""
    names = (
        "self_attn.q_proj.weight",
        "self_attn.q_proj.bias",
        "mlp.switch_mlp.up_proj.weight",
        "norm.weight",
    )
    shapes = ((2048, 1024), (2048,), (8, 512, 1024), (1024,))
    whole = {f"model.layers.0.{name}": normal(*shape) for name, shape in zip(names, shapes, strict=True)}
    return tiny.shard_tensors(whole, 2, 4)


def projected(tiny: Library, is_input_split: bool) -> Tree:
    """Rows of 256 tokens by a projection of which each rank has a half."""
    weight, x = normal(512, 1024, seed=1), normal(256, 512 if is_input_split else 1024)
    return tiny.JoinedProjection(lambda inputs: tiny.linear(inputs, weight), Twins(), is_input_split)(x)


def embedding(tiny: Library) -> Tree:
    """Half of a table of 16,384 rows, those of the second rank."""
    return tiny.ShardedEmbedding(tiny.Embedding(8192, 256, normal(8192, 256)), 8192, Twins())


def looked_up(tiny: Library) -> Tree:
    """The vectors of 4,096 tokens, of which half are the other rank's."""
    return embedding(tiny)(mx.arange(0, 16_384, 4).reshape(64, 64))


def as_head(tiny: Library) -> Tree:
    """Logits of 16 rows, from both halves of the table."""
    return embedding(tiny).as_linear(normal(16, 256, seed=1))


def taken(tiny: Library) -> Tree:
    """What o_proj, up_proj and lm_head of one rank of two compute of 64 tokens."""
    sizes = {"o_proj": (256, 128), "up_proj": (384, 256), "lm_head": (2048, 256)}
    weights = {"o_proj": (128, 256), "up_proj": (384, 256), "lm_head": (1024, 256)}
    whole = {f"{layer}.weight": normal(*shape) for layer, shape in weights.items()}
    tensors = tiny.ShardedTensors(whole, None, None, ranks=Twins())
    projections = {layer: tensors.take_projection(layer, *sizes[layer], False) for layer in sizes}
    return [projections[layer](normal(64, num_inputs, seed=1)) for layer, (_, num_inputs) in sizes.items()]


def mixed(tiny: Library) -> Tree:
    """A mixture of eight experts, of each of which this rank has a half, and 64 tokens."""
    E, hidden, experts = 256, 128, "model.layers.0.mlp.switch_mlp"
    shapes = {"gate_proj": (hidden, E), "up_proj": (hidden, E), "down_proj": (E // 2, 2 * hidden)}
    weights = {
        f"{experts}.{name}.weight": 0.1 * normal(8 * rows, columns, seed=i)
        for i, (name, (rows, columns)) in enumerate(shapes.items())
    }
    weights["model.layers.0.mlp.gate.weight"] = 0.1 * normal(8, E, seed=9)
    tensors = tiny.ShardedTensors(weights, None, None, ranks=Twins())
    config = tiny.ModelConfig("qwen3", E, 1, 2 * hidden, 4, 2, 64, 256, 256)
    moe = tiny.MoeConfig(8, 2, hidden, True, 1, ())
    return tiny.build_sharded_moe(moe, config, tensors, "model.layers.0.mlp")(normal(1, 64, E))


def arrays(count: int = 8) -> list[mx.array]:
    """Integers as of a step of 32,000 tokens, and an array without entries."""
    shapes = [(32_000, 1), *[(32_000,)] * (count - 2), (0,)]
    return [mx.arange(int(np.prod(shape)), dtype=mx.int32).reshape(shape) for shape in shapes]


@cache
def stored() -> Numbers:
    """The message of these arrays, made without the functions that are compared."""
    given = arrays()
    shapes = [number for x in given for number in (x.ndim, *x.shape)]
    return np.array(
        [len(given), *shapes, *(entry for x in given for entry in np.array(x).reshape(-1))], np.int32
    )


def read(tiny: Library) -> Tree:
    """The arrays of a message."""
    return [mx.array(np.ascontiguousarray(each)) for each in tiny.from_message(stored())]


def sent(tiny: Library) -> Tree:
    """A message longer than a frame, as the other rank brings it as well."""
    return tiny.send(mx.array(stored()), Twins())


class Sender(Twins):
    """A rank 0 that sends a message: what it adds to zeros."""

    def __init__(self, frame: int) -> None:
        framed = np.concatenate([[len(stored())], stored()]).astype(np.int32)
        self.parts = [mx.array(framed[:frame]), mx.array(framed[frame:])]

    def all_sum(self, x: mx.array) -> mx.array:
        """x and the next part."""
        return x + self.parts.pop(0)


def received(tiny: Library) -> Tree:
    """A message longer than a frame."""
    return mx.array(tiny.receive(Sender(1024)))


def alone(tiny: Library) -> Tree:
    """Ranks without others."""
    return tiny.OneRank()


def led(tiny: Library) -> Tree:
    """Four answers of an engine whose leading model has no followers."""
    prompts = [token_ids(length, seed) for seed, length in enumerate((19, 5, 29, 11))]
    blocks, config = tiny.BlockManager(60, 4), tiny.SchedulerConfig(24, 3)
    model = tiny.LeadingModel(small_model(tiny), alone(tiny), tiny.Watchdog(config, 96))
    engine = tiny.Engine(model, ByteTokenizer(), config, 96, blocks)
    answers = engine.generate(prompts, tiny.SamplingParams(max_tokens=8))
    return [[list(each.token_ids), each.finish_reason] for each in answers]


def followed(tiny: Library) -> Tree:
    """Keys and values after a step of 96 tokens that a follower computes."""
    follower = tiny.Follower(small_model(tiny), alone(tiny))
    follower.make_pool(16, 8, 0)
    entry = tiny.ScheduledTokens(tiny.Sequence(0, token_ids(96)), 0, 96, True)
    table = {0: tiny.BlockTable(list(range(12)))}
    batch = tiny.ForwardBatch.of(tiny.SchedulerOutput((entry,)), table, follower.runner.pool)
    follower.compute(batch)
    return follower.runner.pool.state


def watched(tiny: Library) -> Tree:
    """Limits while 1,024 steps are recorded, whose costs change halfway."""
    watchdog, limits = tiny.Watchdog(tiny.SchedulerConfig(256, 64), 512, at_least=0.0), []
    costs = tiny.CostModel(0.02, 0.003, 0.00001), tiny.CostModel(0.05, 0.001, 0.00003)
    for i in range(1024):
        entry = tiny.ScheduledTokens(tiny.Sequence(0, [1] * 300), 17 * i % 199, 1 + 7 * i % 97, True)
        output = tiny.SchedulerOutput((entry,))
        watchdog.record(output, costs[i // 512].seconds(output))
        limits.append(watchdog.limit)
    return limits


CASES = (
    Case("shard_tensors", "A quarter of 24 MB", sharded),
    Case("join", "2,048 tokens", lambda tiny: tiny.join(normal(2048, 512), Twins())),
    Case("JoinedProjection.__call__", "A whole input", projected, (False,)),
    Case("JoinedProjection.__call__", "A split input", projected, (True,)),
    Case("ShardedEmbedding.__call__", "4,096 tokens", looked_up),
    Case("ShardedEmbedding.as_linear", "16 rows", as_head),
    Case("take_projection", "Three kinds, 64 tokens", taken),
    Case("build_sharded_moe", "8 experts, 64 tokens", mixed),
    Case("to_message", "8 arrays", lambda tiny: tiny.to_message(arrays())),
    Case("from_message", "8 arrays", read),
    Case("send", "Beyond a frame", sent),
    Case("receive", "Beyond a frame", received),
    Case("LeadingModel.hidden_states", "4 prompts", led),
    Case("Follower.compute", "A prompt of 96 tokens", followed),
    Case("Watchdog.record", "1,024 steps", watched),
)
