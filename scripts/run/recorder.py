"""Drives a BatchGenerator and notes what each phase computed, for whom and when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from scripts.run.run_log import Phase, PhaseEvent, RunLog

if TYPE_CHECKING:
    from tiny_llm import BatchGenerator, GenerationResult, Request, SamplingParams


class Recorder(RunLog):
    """A run of a generator, step by step.

    Args:
        generator: fresh, and stepped by nothing else.
        clock: seconds, from any start.
    """

    def __init__(self, generator: BatchGenerator, clock: Callable[[], float] | None = None) -> None:
        super().__init__(clock)
        self.generator = generator
        self.requests: list[Request] = []

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self.generator.has_work

    @property
    def prompts(self) -> list[list[int]]:
        """The prompt of each request."""
        return [request.prompt_ids for request in self.requests]

    def submit(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        arrival: float | None = None,
    ) -> Request:
        """Submit a prompt and note its arrival, now unless given; errors as for the generator."""
        request = self.generator.submit(prompt, params)
        self.requests.append(request)
        self.record_arrival(request.prompt_idx, arrival)
        return request

    def step(self) -> list[GenerationResult]:
        """One step of the generator; the requests that finished in it."""
        self._run_phase("prefill", self.generator.prefill_phase)
        self._run_phase("decode", self.generator.decode_phase)
        self.generator.promote_phase()
        self.num_steps += 1
        results = self.generator.take_finished()
        for result in results:
            self.record_end(result.prompt_idx)
        return results

    def _run_phase(self, phase: Phase, run: Callable[[], bool]) -> None:
        computed_before = [request.offset for request in self.requests]
        sampled_before = [len(request.token_ids) for request in self.requests]
        start = self.seconds
        if not run():
            return
        end = self.seconds
        starts = {
            request.prompt_idx: before
            for request, before in zip(self.requests, computed_before, strict=True)
            if request.offset > before
        }
        num_tokens = {index: self.requests[index].offset - before for index, before in starts.items()}
        sampled = tuple(
            request.prompt_idx
            for request, before in zip(self.requests, sampled_before, strict=True)
            if len(request.token_ids) > before
        )
        self.record_event(PhaseEvent(self.num_steps, phase, start, end, num_tokens, starts, sampled))
