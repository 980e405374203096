"""Those who serve the same requests in the serving benchmark."""

import gc
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import mlx.core as mx

from benches.load import Load
from benches.mlx_lm_side import MlxLmRecorder, SharedKernels, own_model
from scripts.run.engine_recorder import EngineRecorder
from scripts.run.recorder import Recorder
from scripts.run.run_log import RunLog
from tiny_llm import (
    BatchGenerator,
    Engine,
    InTurn,
    PrefixCachingBlockManager,
    Qwen3Model,
    RequestTimes,
    SamplingParams,
    SchedulerConfig,
    overlapped,
)
from tiny_llm.speculation.endless_tokenizer import EndlessTokenizer

ONE_BUDGET, WHOLE, OVERLAPPED = "one budget", "whole prompts", "overlapped"
BLOCK_SIZE = 16


class Serves(Protocol):
    """A recorder of a server."""

    @property
    def times(self) -> dict[int, RequestTimes]:
        """Of each request that was submitted."""

    @property
    def seconds(self) -> float:
        """Since the start."""

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""

    def submit(self, prompt: Sequence[int], params: SamplingParams, arrival: float) -> object:
        """Add a prompt that arrived at this time."""

    def step(self) -> object:
        """Compute something."""


@dataclass(frozen=True)
class Limits:
    """What a side may do in a step, the same for all.

    Args:
        budget: most tokens of a step, or of a chunk.
        batch_size: most requests that run together.
        longest: most tokens of a prompt of the load.
        max_seq_len: most tokens of a request.
        prefill_budget: most tokens of a step of ONE_BUDGET while no sequence decodes; those of WHOLE by
            default.
    """

    budget: int
    batch_size: int
    longest: int
    max_seq_len: int
    prefill_budget: int | None = None

    @property
    def num_blocks(self) -> int:
        """Blocks of a pool that holds the longest request for each place."""
        return self.batch_size * -(-self.max_seq_len // BLOCK_SIZE)

    @property
    def configs(self) -> dict[str, SchedulerConfig]:
        """Of the engine's sides: WHOLE holds the longest prompt whole, beside a token for each other."""
        whole = self.longest + self.batch_size
        most = self.prefill_budget or max(whole, self.budget)
        one_budget = SchedulerConfig(self.budget, self.batch_size, max_num_prefill_only_tokens=most)
        return {
            ONE_BUDGET: one_budget,
            WHOLE: SchedulerConfig(whole, self.batch_size),
            OVERLAPPED: one_budget,
        }


def make_engine(model: Qwen3Model, limits: Limits, side: str) -> EngineRecorder:
    """The engine of week 3 on its blocks."""
    execution = overlapped if side == OVERLAPPED else InTurn
    blocks = PrefixCachingBlockManager(limits.num_blocks, BLOCK_SIZE)
    most = limits.max_seq_len
    engine = Engine(model, EndlessTokenizer(), limits.configs[side], most, blocks, execution=execution)
    return EngineRecorder(engine)


def make_phases(model: Qwen3Model, limits: Limits) -> Recorder:
    """The three phases of week 2."""
    generator = BatchGenerator(
        model, EndlessTokenizer(), limits.batch_size, limits.budget, limits.max_seq_len
    )
    return Recorder(generator)


def make_sides(
    model: Qwen3Model, checkpoint: Path, limits: Limits, names: Sequence[str]
) -> dict[str, Callable[[], Any]]:
    """What makes a fresh recorder of each side, by its name."""
    shared = SharedKernels(model)
    own = own_model(checkpoint) if "mlx-lm" in names else None
    makers: dict[str, Callable[[], Any]] = {
        **{side: partial(make_engine, model, limits, side) for side in limits.configs},
        "three phases": lambda: make_phases(model, limits),
        "mlx-lm, these kernels": lambda: MlxLmRecorder(shared, limits.batch_size, limits.budget),
        "mlx-lm": lambda: MlxLmRecorder(own, limits.batch_size, limits.budget),
    }
    return {name: makers[name] for name in names}


SIDES = (ONE_BUDGET, OVERLAPPED, WHOLE, "three phases", "mlx-lm, these kernels", "mlx-lm")


@dataclass(frozen=True)
class ServedLoad:
    """A run: its log, and the times of all requests, those that were never submitted included."""

    log: RunLog
    times: list[RequestTimes]


def serve_load(
    make: Callable[[], Any], load: Load, limit: float, params: SamplingParams | None = None
) -> ServedLoad:
    """Submit each request when it arrives and step until all are done, or for `limit` seconds.

    A request that arrives during a step joins after it, and its times count from its arrival. Python's
    garbage collector leaves alone what exists at the start, which would cost it a tenth of a second in the
    middle of the run.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    recorder = make()
    pending = deque(sorted(load, key=lambda request: request.arrival))
    with closing(recorder.generator):
        serve_open_loop(recorder, pending, limit, params)
    mx.clear_cache()
    never = [RequestTimes(request.arrival) for request in pending]
    return ServedLoad(recorder, [*recorder.times.values(), *never])


def serve_open_loop(
    recorder: Serves, pending: deque[Any], limit: float, params: SamplingParams | None = None
) -> None:
    """Take requests out of `pending` as time goes by."""
    while (pending or recorder.has_work) and recorder.seconds < limit:
        while pending and pending[0].arrival <= recorder.seconds:
            request = pending.popleft()
            own = replace(params or SamplingParams(), max_tokens=request.num_output_tokens)
            recorder.submit(list(request.prompt_ids), own, request.arrival)
        if recorder.has_work:
            recorder.step()
        else:
            time.sleep(max(0.0, pending[0].arrival - recorder.seconds))
