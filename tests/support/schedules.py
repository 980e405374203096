"""Random schedules on a random Qwen3, of the batch of week 2 and the engine of week 3, and the law they keep.

Scheduling changes when tokens are computed, never which: whatever runs beside a request, in whatever
chunks and slots, within whatever budget, it gets the token ids it gets alone.
"""

import functools
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import mlx.core as mx
from hypothesis import strategies as st
from mlx.utils import tree_flatten

from accelerated.accelerate import engine_operations
from tests.support.budget import rows_of
from tests.support.checkpoints import Variant, build
from tests.support.pages import check_counts
from tests.support.sampling import draw_alone
from tiny_llm import (
    BatchGenerator,
    BlockManager,
    DenseRunner,
    Engine,
    EngineStep,
    Fcfs,
    GenerationResult,
    InTurn,
    LatencyTarget,
    ModelConfig,
    PrefixCachingBlockManager,
    Priority,
    Qwen3Model,
    SamplingParams,
    SchedulerConfig,
    SchedulerOutput,
    Sequence,
    SimulatedRequest,
    Simulator,
    StructuredOutputsParams,
    UnlimitedBlocks,
    WithDrafts,
)
from tiny_llm.engine.overlapped import Overlapped
from tiny_llm.model.loader import Tensors, build_model
from tiny_llm.model.moe_loader import MoeConfig, build_moe, flatten_experts
from tiny_llm.scheduling.policy import Policy
from tiny_llm.scheduling.tiered_blocks import TieredBlockManager
from tiny_llm.structured.grammars import compile_grammar

VOCAB_SIZE = 30
MAX_SEQ_LEN = 40
EOS_TOKEN_IDS = {0, 1}
LETTERS = "abcdefghi"
PAIRS = [first + second for first in "abc" for second in "abc"]
SPELLINGS = (*LETTERS, *PAIRS, "aaa", "abc", "bca", "cab", "bbb", "acb", "bd", "abd", "ef", "gh")
"""What grammars take tokens from 2 on for: many a text can be spelled in several ways."""
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
MIXTURES = {
    "num_experts": 7,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 20,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [0],
}


class IdTokenizer:
    """Prompts are token ids already; text is not looked at here."""

    bos_token = None
    eos_token_ids = EOS_TOKEN_IDS
    token_bytes = [each.encode() for each in ("", "", *SPELLINGS)]

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
    priority: int = 0


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
        temperature=draw(st.sampled_from([0.5, 1.0, 1.7])),
        top_p=draw(st.sampled_from([0.0, 0.6, 0.95])),
        top_k=draw(st.sampled_from([None, 3, 11])),
        min_p=draw(st.sampled_from([0.0, 0.05])),
        seed=draw(st.integers(0, 2**32)),
        max_tokens=max_tokens,
    )


def token_ids_of(drawn: bytes) -> tuple[int, ...]:
    """A prompt."""
    return tuple(byte % VOCAB_SIZE for byte in drawn)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """One to six requests with prompts of 1 to MAX_SEQ_LEN tokens, arriving together or late."""
    prompts = st.integers(1, MAX_SEQ_LEN).flatmap(
        lambda length: st.binary(min_size=length, max_size=length)  # drawn at once, unlike a list
    )
    arrivals = draw(
        st.lists(
            st.builds(Arrival, st.integers(0, 12), prompts.map(token_ids_of), sampling_params()),
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
class Taste:
    """Whose turn it is and how large a step may be: no patience is Fcfs, no target is the whole budget."""

    patience: int | None = None
    target_ms: float | None = None

    def make(self) -> Policy:
        """A policy for whom nobody waits."""
        order: Policy = Fcfs() if self.patience is None else Priority(self.patience)
        return order if self.target_ms is None else LatencyTarget(order, self.target_ms)

    def num_overtaking(self, priority: int) -> int:
        """Most later arrivals that may be let in before a request of that priority."""
        return (self.patience or 0) * priority


@dataclass(frozen=True)
class Abort:
    """Which of those unfinished goes, before a step or while it is computed."""

    step: int
    which: int
    is_mid_step: bool


@dataclass(frozen=True)
class Quantized:
    """Blocks of so many tokens, whose values have so many bits (day 4.1)."""

    block_size: int
    kv_bits: int


@dataclass(frozen=True)
class EngineSchedule:
    """What the law is tried on for the engine; without a pool it has dense caches.

    Step k takes the k-th of `seconds`, and so on in turns.
    """

    config: SchedulerConfig
    arrivals: tuple[Arrival, ...]
    aborts: tuple[Abort, ...]
    pool: Pool | None = None
    taste: Taste = Taste()
    seconds: tuple[float, ...] = (1.0,)
    kv_bits: int | None = None
    is_sparse: bool = False
    """Whether the model has mixtures of experts (day 4.2)."""

    @property
    def quantized(self) -> Quantized | None:
        """How keys and values are quantized; None for floats."""
        if self.pool is None or self.kv_bits is None:
            return None
        return Quantized(self.pool.block_size, self.kv_bits)

    def run_alone(self, arrival: Arrival) -> tuple[tuple[int, ...], str]:
        """What the engine owes a request: its ids, and why it ends."""
        return run_alone(arrival, True, self.quantized, self.is_sparse)

    def make_blocks(self) -> BlockManager | None:
        """Blocks that nobody holds, or None for dense caches."""
        return None if self.pool is None else self.pool.make()


EITHER = st.booleans()
NEVER = st.just(False)
FLOATS: st.SearchStrategy[int | None] = st.none()
QUANTIZED: st.SearchStrategy[int | None] = st.sampled_from([8, 4])
TASTES = st.builds(Taste, st.none() | st.integers(0, 5), st.none() | st.sampled_from([0.5, 3.0, 20.0]))


@st.composite
def adjusted(draw: st.DrawFn, params: SamplingParams) -> SamplingParams:
    """The same parameters with what the engine adds."""
    return replace(
        params,
        repetition_penalty=draw(st.sampled_from([1.0, 1.3])),
        presence_penalty=draw(st.sampled_from([0.0, 0.7])),
        frequency_penalty=draw(st.sampled_from([0.0, -0.4])),
        logit_bias=draw(st.sampled_from([(), ((3, 4.0), (7, -100.0))])),
        min_tokens=draw(st.integers(0, params.max_tokens or 0)),
    )


REGEXES = st.recursive(
    st.sampled_from(SPELLINGS),
    lambda parts: st.one_of(
        st.lists(parts, min_size=2, max_size=3).map("".join),
        st.lists(parts, min_size=2, max_size=3).map(lambda each: f"({'|'.join(each)})"),
        st.builds(lambda part, times: f"({part}){times}", parts, st.sampled_from(["*", "+", "?", "{1,3}"])),
    ),
    max_leaves=6,
)


@st.composite
def constrained(draw: st.DrawFn, params: SamplingParams) -> SamplingParams:
    """The same parameters, with a grammar half of the time."""
    regex = draw(st.none() | REGEXES)
    if regex is None:
        return params
    return replace(params, structured_outputs=StructuredOutputsParams(regex=regex))


@st.composite
def engine_schedules(
    draw: st.DrawFn,
    pools: st.SearchStrategy[Pool | None],
    tastes: st.SearchStrategy[Taste] = TASTES,
    is_mid_step: st.SearchStrategy[bool] = EITHER,
    is_adjusted: st.SearchStrategy[bool] = EITHER,
    is_constrained: st.SearchStrategy[bool] = NEVER,
    kv_bits: st.SearchStrategy[int | None] = FLOATS,
) -> EngineSchedule:
    """Any limits and policy, the requests of a schedule of week 2, and up to two aborts.

    With `is_constrained`, some requests have grammars; with `kv_bits`, blocks are quantized.

    Prompts share their beginnings: each is a piece of one before it with an end of its own, or new.
    """
    max_num_seqs = draw(st.integers(1, 5))
    budget = max_num_seqs + draw(st.integers(0, MAX_SEQ_LEN))
    config = SchedulerConfig(
        budget,
        max_num_seqs,
        draw(st.none() | st.integers(1, MAX_SEQ_LEN)),
        draw(st.none() | st.integers(1, 3)),
        draw(st.none() | st.integers(budget, 2 * MAX_SEQ_LEN)),
    )
    abort = st.builds(Abort, st.integers(0, 15), st.integers(0, 5), is_mid_step)
    aborts = draw(st.lists(abort, max_size=2))
    pool, taste = draw(pools), draw(tastes)
    arrivals = draw(schedules()).arrivals
    if pool is not None and pool.is_shared:
        arrivals = draw(alike(arrivals))
    if draw(is_adjusted):
        arrivals = tuple(replace(each, params=draw(adjusted(each.params))) for each in arrivals)
    if draw(is_constrained):
        arrivals = tuple(replace(each, params=draw(constrained(each.params))) for each in arrivals)
    if taste.patience is not None:
        arrivals = tuple(replace(each, priority=draw(st.integers(0, 3))) for each in arrivals)
    milliseconds = draw(st.lists(st.integers(1, 30), min_size=1, max_size=7))
    seconds = tuple(each / 1e3 for each in milliseconds)
    return EngineSchedule(config, arrivals, tuple(aborts), pool, taste, seconds, draw(kv_bits))


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


def variant_of(is_sparse: bool, head_dim: int) -> Variant:
    """The sizes of a random model. With experts, a token uses 3 of 7, and the first layer has none."""
    if is_sparse:
        return Variant("invariance", "qwen3_moe", {**SIZES, **MIXTURES, "head_dim": head_dim})
    return Variant("invariance", "qwen3", {**SIZES, "head_dim": head_dim})


@functools.cache
def random_qwen3(seed: int = 11, head_dim: int = 8) -> Qwen3Model:
    """A Qwen3 with all its traits whose every weight counts, in float32."""
    variant = variant_of(False, head_dim)
    model = build_model(config_of(variant), Tensors(loud_tensors(variant, seed)))
    model.operations = engine_operations(mx.float32)
    return model


@functools.cache
def random_moe(seed: int = 11, head_dim: int = 8) -> Qwen3Model:
    """The same with mixtures of experts."""
    variant = variant_of(True, head_dim)
    make_mlp = partial(build_moe, MoeConfig.from_dict(variant.config))
    tensors = Tensors(flatten_experts(loud_tensors(variant, seed)))
    model = build_model(config_of(variant), tensors, make_mlp)
    model.operations = engine_operations(mx.float32)
    return model


def config_of(variant: Variant) -> ModelConfig:
    """The sizes of the variant, read as those of a model without experts."""
    return ModelConfig.from_dict({**variant.config, "model_type": "qwen3"})


def loud_tensors(variant: Variant, seed: int = 11) -> dict[str, mx.array]:
    """Random tensors under their names, with weights so large that each of them counts."""
    tensors = tree_flatten(build(variant, seed=seed).parameters())
    return {name: value if "norm" in name else value * 3 for name, value in tensors}


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


@functools.lru_cache(maxsize=64)
def run_alone(
    arrival: Arrival, is_engine: bool = False, quantized: Quantized | None = None, is_sparse: bool = False
) -> tuple[tuple[int, ...], str]:
    """The ids one request gets from the model without cache, batch or chunks, and why it ends.

    The engine draws by number, the batch of week 2 by a sampler that counts.
    """
    if quantized is not None:
        return run_in_blocks(arrival, quantized, is_sparse)
    model, sampler = model_for(None, is_sparse), arrival.params.make_sampler()
    params, sequence = replace(arrival.params, stop_token_ids=EOS_TOKEN_IDS), Sequence(0, arrival.prompt)
    tokens, output = sequence.token_ids, list[int]()
    bound = min(arrival.params.max_tokens or MAX_SEQ_LEN, MAX_SEQ_LEN - len(tokens))
    while True:
        logits = model(mx.array([tokens]))[:, -1]
        if arrival.params.structured_outputs is not None:
            allowed = allowed_tokens(arrival.params.structured_outputs, tuple(output))
            may_come = mx.array([token in allowed for token in range(VOCAB_SIZE)])
            logits = mx.where(may_come, logits, -mx.inf)
            if allowed <= EOS_TOKEN_IDS:
                params = replace(params, min_tokens=0)
        if is_engine:
            token = draw_alone(logits, params, sequence)
        else:
            token = int(sampler(logits - mx.logsumexp(logits, axis=-1, keepdims=True)).item())
        if token in EOS_TOKEN_IDS:
            return tuple(output), "stop"
        if len(output) == bound:
            return tuple(output), "length"
        tokens.append(token)
        output.append(token)
        if len(output) == bound:
            return tuple(output), "length"


def model_for(quantized: Quantized | None, is_sparse: bool = False) -> Qwen3Model:
    """The model of the schedules; heads in quantized blocks have a multiple of 32 dimensions."""
    make = random_moe if is_sparse else random_qwen3
    return make() if quantized is None else make(head_dim=32)


def run_in_blocks(
    arrival: Arrival, quantized: Quantized, is_sparse: bool = False
) -> tuple[tuple[int, ...], str]:
    """The same from an engine that runs nothing else, each prompt in one chunk, since rounding to codes makes
    a difference of the last bit, as between two ways to compute attention, as large as a step."""
    config, blocks = SchedulerConfig(MAX_SEQ_LEN, 1), BlockManager(MAX_SEQ_LEN, quantized.block_size)
    with Engine(
        model_for(quantized, is_sparse),
        IdTokenizer(),
        config,
        MAX_SEQ_LEN,
        blocks,
        kv_bits=quantized.kv_bits,
    ) as engine:
        (result,) = engine.generate([arrival.prompt], arrival.params)
    return tuple(result.token_ids), result.finish_reason


def allowed_tokens(params: StructuredOutputsParams, answer: tuple[int, ...]) -> set[int]:
    """What may follow an answer, by a new matcher that has read it from its start."""
    matcher = compile_grammar(params, IdTokenizer()).matcher
    assert matcher.try_consume_tokens(list(answer)) == len(answer)
    mask = int.from_bytes(matcher.compute_bitmask(), "little")
    return {token for token in range(VOCAB_SIZE) if mask >> token & 1}


def check_law(schedule: Schedule) -> None:
    """Fail unless each request of the schedule gets what it gets alone."""
    together = run_together(schedule)
    in_order = sorted(schedule.arrivals, key=lambda arrival: arrival.after_step)
    assert [result.prompt_idx for result in together] == list(range(len(in_order)))
    for arrival, result in zip(in_order, together, strict=True):
        alone = run_alone(arrival)
        assert (result.token_ids, result.finish_reason) == alone, f"request {result.prompt_idx} differs"


def check_engine_law(schedule: EngineSchedule, kind: Callable[..., Engine] = Engine) -> None:
    """Fail unless every law of the engine holds.

    Each request gets what it gets alone, none waits past its bound, no step passes its limits, the blocks
    add up, the simulator's schedule is the engine's, and all is released at the end. An engine that
    overlaps its steps, or computes drafts, has a schedule of its own.
    """
    pending = sorted(schedule.arrivals, key=lambda arrival: arrival.after_step)
    in_order = list(pending)
    both = EngineAndSimulator(schedule, kind)
    waits = Waits(schedule)
    with both.engine as engine:
        for step in range(2000):
            while pending and pending[0].after_step <= step:
                waits.note_arrival(both.add(pending.pop(0)), step, engine)
            done = both.step([abort for abort in schedule.aborts if abort.step == step])
            waits.check(done, step, engine)
            check_limits(schedule.config, engine, done)
            if both.blocks is not None:
                check_blocks(both.blocks)
            if not pending and not engine.has_unfinished_requests:
                break
        check_all_is_free(engine)
        if both.blocks is not None:
            assert both.blocks.num_used_blocks == 0
            assert not both.blocks.tables
    assert both.has_own_schedule or not both.simulator.scheduler.has_work
    assert sorted([*both.results, *both.aborted]) == list(range(len(in_order)))
    for number, result in both.results.items():
        alone = schedule.run_alone(in_order[number])
        assert (result.token_ids, result.finish_reason) == alone, f"request {number} differs"


class EngineAndSimulator:
    """Both, given the same requests and aborts; fails where a step of one is not that of the other.

    The simulator is told how many tokens each request samples, and no more.
    """

    def __init__(self, schedule: EngineSchedule, kind: Callable[..., Engine]) -> None:
        self.blocks = schedule.make_blocks()
        self._run_alone = schedule.run_alone
        self.engine = kind(
            model_for(schedule.quantized, schedule.is_sparse),
            IdTokenizer(),
            schedule.config,
            MAX_SEQ_LEN,
            self.blocks or UnlimitedBlocks(),
            schedule.taste.make(),
            clock=lambda: self._now,
            kv_bits=schedule.kv_bits,
        )
        self.simulator = Simulator(schedule.config, self, schedule.make_blocks(), schedule.taste.make())
        self.results: dict[int, GenerationResult] = {}
        self.aborted: set[int] = set()
        self._seconds = schedule.seconds
        self._now = 0.0
        self._num_steps = 0
        self._aborts_in_step: list[Abort] = []
        # What is called once in each step, while it is under way.
        execution = self.engine.execution
        # The simulator knows no second tier.
        self.has_own_schedule = not isinstance(execution, InTurn) or isinstance(
            self.blocks, TieredBlockManager
        )
        name = {InTurn: "run", Overlapped: "compute", WithDrafts: "verify"}[type(execution)]
        self._compute = getattr(execution.runner, name)
        setattr(execution.runner, name, self._compute_and_abort)

    def seconds(self, output: SchedulerOutput) -> float:
        """What the step under way takes, whatever is in it."""
        return self._seconds[self._num_steps % len(self._seconds)]

    def add(self, arrival: Arrival) -> int:
        """Let a request wait in both; returns its number."""
        room = MAX_SEQ_LEN - len(arrival.prompt)
        token_ids, reason = self._run_alone(arrival)
        num_sampled = len(token_ids) + (reason == "stop" or room == 0)
        self.simulator.add(
            SimulatedRequest(
                arrival.prompt,
                num_sampled,
                priority=arrival.priority,
                max_tokens=min(arrival.params.max_tokens, room),
                output_ids=token_ids,
            )
        )
        return self.engine.add_request(arrival.prompt, arrival.params, arrival.priority)

    def step(self, aborts: Items[Abort]) -> EngineStep:
        """The aborts of a step, and the step, in both."""
        for abort in aborts:
            if not abort.is_mid_step:
                self._abort(abort)
        for number in self.aborted & self.simulator.scheduler.sequences.keys():
            self.simulator.scheduler.remove(number)
        self._aborts_in_step = [abort for abort in aborts if abort.is_mid_step]
        done = self.engine.step()
        if not self.has_own_schedule:
            simulated = self.simulator.step()
            for number in self.aborted & self.simulator.scheduler.sequences.keys():
                self.simulator.scheduler.remove(number)
            assert rows_of(done.scheduled) == rows_of(simulated.output), (
                "the simulator schedules something else"
            )
        self._num_steps += 1
        self.results |= {result.prompt_idx: result for result in done.finished}
        return done

    def _abort(self, abort: Abort) -> None:
        there = sorted(self.engine.requests.keys() - self.aborted)
        if there:
            number = there[abort.which % len(there)]
            assert self.engine.abort(number)
            self.aborted.add(number)

    def _compute_and_abort(self, *args: Any) -> Any:
        computed = self._compute(*args)
        self._now += self._seconds[self._num_steps % len(self._seconds)]
        for abort in self._aborts_in_step:
            self._abort(abort)
        return computed


class Waits:
    """How long each request waits until it is let in, in steps and in requests that overtook it.

    Also how often it is preempted: at most once for each later arrival that ranks before it, and in a pool
    that overcommits once for each block of those that may grow before it.
    """

    def __init__(self, schedule: EngineSchedule) -> None:
        self._taste = schedule.taste
        pool = schedule.pool
        self._num_growths = -(-MAX_SEQ_LEN // pool.block_size) if pool is not None and pool.overcommit else 0
        self._sequences: dict[int, Sequence] = {}
        self._deadlines: dict[int, int] = {}
        self._num_may_overtake: dict[int, int] = {}
        self._overtaken_by: dict[int, set[int]] = {}

    def note_arrival(self, number: int, step: int, engine: Engine) -> None:
        """A request waits from this step on."""
        rank, sequences = engine.scheduler.policy.rank, engine.scheduler.sequences
        num_ahead = sum(rank(each) < rank(sequences[number]) for each in sequences.values())
        self._sequences[number] = sequences[number]
        num_may_overtake = self._taste.num_overtaking(sequences[number].priority)
        self._num_may_overtake[number] = num_may_overtake
        self._overtaken_by[number] = set()
        self._deadlines[number] = step + wait_bound(num_ahead, num_may_overtake)

    def check(self, done: EngineStep, step: int, engine: Engine) -> None:
        """Fail if somebody waits too long, or was overtaken too often."""
        self._check_preemptions(engine.scheduler.policy.rank)
        computed = {entry.sequence.id for entry in done.scheduled.entries}
        for number in computed | (self._deadlines.keys() - engine.requests.keys()):
            self._deadlines.pop(number, None)
        for number, deadline in self._deadlines.items():
            assert step < deadline, f"request {number} waits past its bound"
            overtaken_by = self._overtaken_by[number]
            overtaken_by |= {other for other in computed if other > number}
            assert len(overtaken_by) <= self._num_may_overtake[number], (
                f"request {number} is overtaken too often"
            )

    def _check_preemptions(self, rank: Callable[[Sequence], float]) -> None:
        for number, sequence in self._sequences.items():
            before = [each for each in self._sequences.values() if rank(each) < rank(sequence)]
            bound = sum(each.arrival > sequence.arrival for each in before)
            bound += self._num_growths * (len(before) + 1)
            assert sequence.num_preemptions <= bound, f"request {number} is preempted too often"


def wait_bound(num_ahead: int, num_may_overtake: int) -> int:
    """Most steps that a request waits, by how many rank before it when it comes, and may do so later.

    Whoever runs has a token in every step and ends within MAX_SEQ_LEN of them, or goes back behind who
    ranks before it. So who ranks first of all is let in after so many steps, and done after as many again;
    unless one comes that ranks before it.
    """
    return 2 * MAX_SEQ_LEN * (num_ahead + 2 * num_may_overtake + 1)


def check_limits(config: SchedulerConfig, engine: Engine, step: EngineStep) -> None:
    """No step passes its limits, and none leaves out who runs."""
    entries = step.scheduled.entries
    assert step.scheduled.num_tokens <= max(
        config.max_num_batched_tokens, config.max_num_prefill_only_tokens or 0
    )
    assert len(entries) <= config.max_num_seqs
    assert max((entry.num_tokens - len(entry.draft_ids) for entry in entries), default=0) <= (
        config.long_prefill_token_threshold or MAX_SEQ_LEN
    )
    assert sum(not entry.is_final for entry in entries) <= (config.max_num_partial_prefills or MAX_SEQ_LEN)
    assert bool(entries) or not engine.has_unfinished_requests


def check_blocks(blocks: BlockManager) -> None:
    """Fail unless the blocks add up, and those that are free are among those that nobody holds."""
    check_counts(blocks)
    assert blocks.num_free_blocks <= blocks.num_available_blocks


def check_all_is_free(engine: Engine) -> None:
    """Nothing is held once all sequences have left."""
    if isinstance(engine.runner, DenseRunner):
        assert engine.runner.caches == {}
    assert engine.scheduler.running == []
    assert len(engine.scheduler.policy) == 0
