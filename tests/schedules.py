"""Random schedules on a random Qwen3, of the batch of week 2 and the engine of week 3, and the law they keep.

Scheduling changes when tokens are computed, never which: whatever runs beside a request, in whatever
chunks and slots, within whatever budget, it gets the token ids it gets alone.
"""

import functools
from dataclasses import dataclass, replace

import mlx.core as mx
from hypothesis import strategies as st
from mlx.utils import tree_flatten

from checkpoints import Variant, build
from tiny_llm import (
    BatchGenerator,
    BlockManager,
    CostModel,
    DenseRunner,
    Engine,
    EngineStep,
    GenerationResult,
    ModelConfig,
    PrefixCachingBlockManager,
    Qwen3Model,
    SamplingParams,
    SchedulerConfig,
    SimulatedRequest,
    Simulator,
)
from tiny_llm.loader import Tensors, build_model

VOCAB_SIZE = 29
MAX_SEQ_LEN = 40
EOS_TOKEN_IDS = {0, 1}
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 64,
}


class IdTokenizer:
    """Prompts are token ids already; text is not looked at here."""

    bos_token = None
    eos_token_ids = EOS_TOKEN_IDS

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        raise NotImplementedError

    def decode(self, token_ids: list[int]) -> str:
        return " ".join(map(str, token_ids))


@dataclass(frozen=True)
class Arrival:
    """A request that is submitted once so many steps have run."""

    after_step: int
    prompt: tuple[int, ...]
    params: SamplingParams


@dataclass(frozen=True)
class Schedule:
    """What the law is tried on."""

    batch_size: int
    prefill_step: int
    arrivals: tuple[Arrival, ...]


@st.composite
def sampling_params(draw: st.DrawFn) -> SamplingParams:
    """Greedy half of the time, else every kind of cut with a seed of its own."""
    max_tokens = draw(st.integers(1, 9))
    if draw(st.booleans()):
        return SamplingParams(max_tokens=max_tokens)
    return SamplingParams(
        temp=draw(st.sampled_from([0.5, 1.0, 1.7])),
        top_p=draw(st.sampled_from([0.0, 0.6, 0.95])),
        top_k=draw(st.sampled_from([None, 3, 11])),
        min_p=draw(st.sampled_from([0.0, 0.05])),
        seed=draw(st.integers(0, 2**32)),
        max_tokens=max_tokens,
    )


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """One to six requests with prompts of 1 to MAX_SEQ_LEN tokens, arriving together or late."""
    prompts = st.integers(1, MAX_SEQ_LEN).flatmap(
        lambda length: st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=length, max_size=length)
    )
    arrivals = draw(
        st.lists(
            st.builds(Arrival, st.integers(0, 12), prompts.map(tuple), sampling_params()),
            min_size=1,
            max_size=6,
        )
    )
    return Schedule(draw(st.integers(1, 4)), draw(st.integers(1, MAX_SEQ_LEN)), tuple(arrivals))


@dataclass(frozen=True)
class Pool:
    """Blocks of which a request of MAX_SEQ_LEN tokens takes `num_spare_blocks` less than all."""

    block_size: int
    num_spare_blocks: int
    overcommit: bool = False
    watermark: float = 0.0
    is_shared: bool = False

    def make(self) -> BlockManager:
        """Blocks that nobody holds."""
        num_blocks = -(-MAX_SEQ_LEN // self.block_size) + self.num_spare_blocks
        kind = PrefixCachingBlockManager if self.is_shared else BlockManager
        return kind(num_blocks, self.block_size, self.overcommit, self.watermark)


@dataclass(frozen=True)
class EngineSchedule:
    """What the law is tried on for the engine; `aborts` are steps and which of those unfinished then goes.

    Without a pool the engine has dense caches.
    """

    config: SchedulerConfig
    arrivals: tuple[Arrival, ...]
    aborts: tuple[tuple[int, int], ...]
    pool: Pool | None = None

    def make_blocks(self) -> BlockManager | None:
        """Blocks that nobody holds, or None for dense caches."""
        return None if self.pool is None else self.pool.make()


@st.composite
def engine_schedules(draw: st.DrawFn, pools: st.SearchStrategy[Pool | None]) -> EngineSchedule:
    """Any limits, the requests of a schedule of week 2, and up to two aborts.

    Prompts share their beginnings: each is a piece of one before it with an end of its own, or new.
    """
    max_num_seqs = draw(st.integers(1, 5))
    config = SchedulerConfig(
        max_num_seqs + draw(st.integers(0, MAX_SEQ_LEN)),
        max_num_seqs,
        draw(st.none() | st.integers(1, MAX_SEQ_LEN)),
        draw(st.none() | st.integers(1, 3)),
    )
    aborts = draw(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 5)), max_size=2))
    pool = draw(pools)
    arrivals = draw(schedules()).arrivals
    if pool is not None and pool.is_shared:
        arrivals = draw(alike(arrivals))
    return EngineSchedule(config, arrivals, tuple(aborts), pool)


POOLS: dict[str, st.SearchStrategy[Pool | None]] = {
    "dense": st.none(),
    "reserved": st.builds(Pool, st.integers(1, 9), st.integers(0, 60)),
    "overcommitted": st.builds(
        Pool, st.integers(1, 9), st.integers(0, 20), st.just(True), st.sampled_from([0, 0.2])
    ),
    "shared": st.builds(
        Pool, st.integers(1, 5), st.integers(0, 40), st.booleans(), st.just(0.0), st.just(True)
    ),
}
"""Where keys and values are held: by caches of their own, or by blocks of each kind."""


@st.composite
def alike(draw: st.DrawFn, arrivals: tuple[Arrival, ...]) -> tuple[Arrival, ...]:
    """The same requests, with prompts that begin like one before them, or are the same."""
    alike: list[Arrival] = []
    for arrival in arrivals:
        if alike:
            other = draw(st.sampled_from(alike)).prompt
            length = draw(st.integers(0, len(other)))
            end = arrival.prompt[: draw(st.integers(length == 0, MAX_SEQ_LEN - length))]
            arrival = replace(arrival, prompt=other[:length] + end)
        alike.append(arrival)
    return tuple(alike)


@functools.cache
def random_qwen3() -> Qwen3Model:
    """A Qwen3 with all its traits whose every weight counts, in float32."""
    variant = Variant("invariance", "qwen3", SIZES)
    tensors = dict(tree_flatten(build(variant, seed=11).parameters()))
    louder = {name: value if "norm" in name else value * 3 for name, value in tensors.items()}
    return build_model(ModelConfig.from_dict(variant.config), Tensors(louder))


def run_together(schedule: Schedule) -> list[GenerationResult]:
    """All requests of the schedule in one generator, each submitted when its time has come."""
    pending = sorted(schedule.arrivals, key=lambda arrival: arrival.after_step)
    results: list[GenerationResult] = []
    with BatchGenerator(
        random_qwen3(), IdTokenizer(), schedule.batch_size, schedule.prefill_step, MAX_SEQ_LEN
    ) as generator:
        step = 0
        while pending or generator.has_work:
            while pending and pending[0].after_step <= step:
                arrival = pending.pop(0)
                generator.submit(arrival.prompt, arrival.params)
            results += generator.step()
            step += 1
            assert step < 2000, "the batch does not end"
    return sorted(results, key=lambda result: result.prompt_idx)


def run_alone(arrival: Arrival) -> tuple[tuple[int, ...], str]:
    """The ids one request gets from the model without cache, batch or chunks, and why it ends."""
    model, sampler = random_qwen3(), arrival.params.make_sampler()
    tokens, output = list(arrival.prompt), []
    bound = min(arrival.params.max_tokens or MAX_SEQ_LEN, MAX_SEQ_LEN - len(tokens))
    while True:
        logits = model(mx.array([tokens]))[:, -1]
        token = int(sampler(logits - mx.logsumexp(logits, axis=-1, keepdims=True)).item())
        if token in EOS_TOKEN_IDS:
            return tuple(output), "stop"
        if len(output) == bound:
            return tuple(output), "length"
        tokens.append(token)
        output.append(token)
        if len(output) == bound:
            return tuple(output), "length"


def check_law(schedule: Schedule) -> None:
    """Fail unless each request of the schedule gets what it gets alone."""
    together = run_together(schedule)
    in_order = sorted(schedule.arrivals, key=lambda arrival: arrival.after_step)
    assert [result.prompt_idx for result in together] == list(range(len(in_order)))
    for arrival, result in zip(in_order, together, strict=True):
        alone = run_alone(arrival)
        assert (result.token_ids, result.finish_reason) == alone, f"request {result.prompt_idx} differs"


def check_engine_law(schedule: EngineSchedule) -> None:
    """Fail unless each request gets what it gets alone, within the limits, and all is released at the end."""
    pending = sorted(schedule.arrivals, key=lambda arrival: arrival.after_step)
    in_order, aborted = list(pending), set()
    results: list[GenerationResult] = []
    blocks = schedule.make_blocks()
    with Engine(random_qwen3(), IdTokenizer(), schedule.config, MAX_SEQ_LEN, blocks) as engine:
        for step in range(2000):
            while pending and pending[0].after_step <= step:
                arrival = pending.pop(0)
                engine.add_request(arrival.prompt, arrival.params)
            for _, which in (abort for abort in schedule.aborts if abort[0] == step and engine.requests):
                aborted.add(unfinished := sorted(engine.requests)[which % len(engine.requests)])
                engine.abort(unfinished)
            done = engine.step()
            check_limits(schedule.config, engine, done)
            if blocks is not None:
                check_blocks(blocks)
            results += done.finished
            if not pending and not engine.has_unfinished_requests:
                break
        check_all_is_free(engine)
        if blocks is not None:
            assert blocks.num_used_blocks == 0
    assert sorted([result.prompt_idx for result in results] + [*aborted]) == list(range(len(in_order)))
    for result in results:
        alone = run_alone(in_order[result.prompt_idx])
        assert (result.token_ids, result.finish_reason) == alone, f"request {result.prompt_idx} differs"
    if not schedule.aborts:
        check_simulator_agrees(schedule, {result.prompt_idx: result for result in results})


def check_limits(config: SchedulerConfig, engine: Engine, step: EngineStep) -> None:
    """No step passes its limits, and none leaves out who runs."""
    entries = step.scheduled.entries
    assert step.scheduled.num_tokens <= config.max_num_batched_tokens
    assert len(entries) <= config.max_num_seqs
    assert max((entry.num_tokens for entry in entries), default=0) <= (
        config.long_prefill_token_threshold or MAX_SEQ_LEN
    )
    assert sum(not entry.is_final for entry in entries) <= (config.max_num_partial_prefills or MAX_SEQ_LEN)
    assert bool(entries) or not engine.has_unfinished_requests


def check_blocks(blocks: BlockManager) -> None:
    """Every block is free, or in as many tables as is counted; what is promised is there."""
    held = [block for table in blocks.tables.values() for block in table.block_ids]
    assert [held.count(block) for block in range(blocks.num_blocks)] == blocks.ref_counts
    assert blocks.num_available_blocks == blocks.ref_counts.count(0)
    assert blocks.num_promised == sum(table.num_promised for table in blocks.tables.values())
    assert 0 <= blocks.num_promised <= blocks.num_available_blocks


def check_all_is_free(engine: Engine) -> None:
    """Nothing is held when everybody has left."""
    if isinstance(engine.runner, DenseRunner):
        assert engine.runner.slots == [None] * len(engine.runner.slots)
        assert engine.runner.prompt_caches == {}
    assert engine.scheduler.running == []
    assert len(engine.scheduler.policy) == 0


def check_simulator_agrees(schedule: EngineSchedule, results: dict[int, GenerationResult]) -> None:
    """The simulator, told how many tokens each request samples, schedules what the engine did."""
    simulator = Simulator(schedule.config, CostModel(1.0, 0.0), schedule.make_blocks())
    blocks = schedule.make_blocks()
    with Engine(random_qwen3(), IdTokenizer(), schedule.config, MAX_SEQ_LEN, blocks) as engine:
        pending = sorted(schedule.arrivals, key=lambda arrival: arrival.after_step)
        for step in range(2000):
            while pending and pending[0].after_step <= step:
                arrival = pending.pop(0)
                result = results[engine.add_request(arrival.prompt, arrival.params)]
                room = MAX_SEQ_LEN - len(arrival.prompt)
                is_cut = result.finish_reason == "stop" or room == 0
                num_outputs = len(result.token_ids) + is_cut
                most = min(arrival.params.max_tokens, room)
                simulator.add(
                    SimulatedRequest(
                        arrival.prompt, num_outputs, max_tokens=most, output_ids=result.token_ids
                    )
                )
            computed, simulated = engine.step().scheduled.entries, simulator.step().output.entries
            assert [(each.sequence.id, *each[1:]) for each in computed] == [
                (each.sequence.id, *each[1:]) for each in simulated
            ]
            if not pending and not engine.has_unfinished_requests:
                break
    assert not simulator.scheduler.has_work
