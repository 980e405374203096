"""Drives an Engine and notes what each step computed, for whom and when."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scripts.recorder import PhaseEvent
from tiny_llm_ref import ChunkedPrefillMetrics, Engine, EngineStep, GenerationResult, SamplingParams
from tiny_llm_ref.request import FinishReason
from tiny_llm_ref.serving.engine_request import EngineRequest


@dataclass(frozen=True)
class ServedRequest:
    """A request of an engine in the words of a report; it stays readable when the engine has forgotten it."""

    request: EngineRequest

    @property
    def prompt_idx(self) -> int:
        """Its number."""
        return self.request.sequence.id

    @property
    def prompt_ids(self) -> list[int]:
        """The prompt."""
        sequence = self.request.sequence
        return sequence.token_ids[: sequence.num_prompt_tokens]

    @property
    def token_ids(self) -> list[int]:
        """The answer so far."""
        return self.request.token_ids

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it ended."""
        return self.request.finish_reason

    @property
    def is_done(self) -> bool:
        """Whether it has ended."""
        return self.request.is_done

    def text(self) -> str:
        """The answer so far, as text."""
        return self.request.text()


class EngineRecorder:
    """A run of an engine, step by step; a step's chunks and decodes all last as long as the step.

    Args:
        engine: fresh, and stepped by nobody else.
        clock: seconds, from any start.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.perf_counter) -> None:
        self.generator = engine
        self.requests: list[ServedRequest] = []
        self.events: list[PhaseEvent] = []
        self.steps: list[tuple[EngineStep, float]] = []
        self.metrics = ChunkedPrefillMetrics()
        self.finished_at: dict[int, float] = {}
        self._clock = clock
        self._start = clock()

    @property
    def seconds(self) -> float:
        """Since the recorder was made."""
        return self._clock() - self._start

    @property
    def num_steps(self) -> int:
        """Steps so far."""
        return len(self.steps)

    @property
    def has_work(self) -> bool:
        """Whether a step would compute anything."""
        return self.generator.has_unfinished_requests

    def submit(self, prompt: str | Sequence[int], params: SamplingParams | None = None) -> ServedRequest:
        """Add a prompt and note its arrival; errors as for the engine."""
        request_id = self.generator.add_request(prompt, params)
        request = ServedRequest(self.generator.requests[request_id])
        self.requests.append(request)
        self.metrics.record_arrival(request_id, self.seconds)
        return request

    def step(self) -> list[GenerationResult]:
        """One step of the engine; the requests that finished in it."""
        lengths = [len(request.token_ids) for request in self.requests]
        start = self.seconds
        step = self.generator.step()
        end = self.seconds
        self._record_calls(step, start, end)
        self.steps.append((step, end - start))
        for request, before in zip(self.requests, lengths, strict=True):
            if len(request.token_ids) > before:
                self.metrics.record_token(request.prompt_idx, end)
        for result in step.finished:
            self.finished_at[result.prompt_idx] = end
        return list(step.finished)

    def state_of(self, request: ServedRequest) -> str:
        """Where a request is, in the words of the table."""
        sequence = request.request.sequence
        if request.is_done:
            return f"done ({request.finish_reason})"
        if sequence not in self.generator.scheduler.running:
            return "waiting"
        if sequence.is_prefilling:
            return f"prefill {sequence.num_computed_tokens}/{sequence.num_prompt_tokens}"
        return "decoding"

    def _record_calls(self, step: EngineStep, start: float, end: float) -> None:
        """An event for each chunk, and one for all that decode."""
        decodes = {}
        for entry in step.scheduled.entries:
            if entry.is_prefill:
                tokens = {entry.sequence.id: entry.num_tokens}
                self.events.append(PhaseEvent(self.num_steps, "prefill", start, end, tokens))
                self.metrics.record_chunk(entry.num_tokens, end - start)
            else:
                decodes[entry.sequence.id] = entry.num_tokens
        if decodes:
            self.events.append(PhaseEvent(self.num_steps, "decode", start, end, decodes))
