"""Drives a BatchGenerator and notes what each phase computed, for whom and when."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from tiny_llm_ref import (
    BatchGenerator,
    ChunkedPrefillMetrics,
    GenerationResult,
    Request,
    SamplingParams,
)

Phase = Literal["prefill", "decode"]


@dataclass(frozen=True)
class PhaseEvent:
    """One call of a phase: `num_tokens` computed for each request, by its index; seconds since the start."""

    step: int
    phase: Phase
    start: float
    end: float
    num_tokens: dict[int, int]


class Recorder:
    """A run of a generator, step by step.

    Args:
        generator: fresh, and stepped by nobody else.
        clock: seconds, from any start.
    """

    def __init__(self, generator: BatchGenerator, clock: Callable[[], float] = time.perf_counter) -> None:
        self.generator = generator
        self.requests: list[Request] = []
        self.events: list[PhaseEvent] = []
        self.metrics = ChunkedPrefillMetrics()
        self.finished_at: dict[int, float] = {}
        self.num_steps = 0
        self._clock = clock
        self._start = clock()

    @property
    def seconds(self) -> float:
        """Since the recorder was made."""
        return self._clock() - self._start

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self.generator.has_work

    def submit(self, prompt: str | Sequence[int], params: SamplingParams | None = None) -> Request:
        """Submit a prompt and note its arrival; errors as for the generator."""
        request = self.generator.submit(prompt, params)
        self.requests.append(request)
        self.metrics.record_arrival(request.prompt_idx, self.seconds)
        return request

    def step(self) -> list[GenerationResult]:
        """One step of the generator; the requests that finished in it."""
        self._run_phase("prefill", self.generator.prefill_phase)
        self._run_phase("decode", self.generator.decode_phase)
        self.generator.promote_phase()
        self.num_steps += 1
        results = self.generator.take_finished()
        for result in results:
            self.finished_at[result.prompt_idx] = self.seconds
        return results

    def state_of(self, request: Request) -> str:
        """Where a request is, in the words of the table."""
        if request.is_done:
            return f"done ({request.finish_reason})"
        if request.is_prefill_done:
            return "decoding" if request in self.generator.slots else "waiting for a slot"
        if request is self.generator.prefilling:
            return f"prefill {request.offset}/{len(request.prompt_ids)}"
        return "waiting"

    def _run_phase(self, phase: Phase, run: Callable[[], bool]) -> None:
        computed_before = [request.offset for request in self.requests]
        sampled_before = [len(request.token_ids) for request in self.requests]
        start = self.seconds
        if not run():
            return
        end = self.seconds
        num_tokens = {
            request.prompt_idx: request.offset - before
            for request, before in zip(self.requests, computed_before, strict=True)
            if request.offset > before
        }
        self.events.append(PhaseEvent(self.num_steps, phase, start, end, num_tokens))
        if phase == "prefill":
            self.metrics.record_chunk(sum(num_tokens.values()), end - start)
        for request, before in zip(self.requests, sampled_before, strict=True):
            if len(request.token_ids) > before:
                self.metrics.record_token(request.prompt_idx, end)
