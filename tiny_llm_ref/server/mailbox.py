"""What crosses between the engine's thread and the event loop: numbers, text and bytes, never an array."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ..batching.answer import TokenLogprobs
from ..generation.sampler import SamplingParams
from ..simulation.cost_model import CostModel


@dataclass(frozen=True)
class Submit:
    """Run a request.

    Args:
        ticket: the sender's number for the request; every message about it carries this number.
        prompt_ids: at least one token.
        params: how to sample, and when to end.
        priority: 0 for the most urgent.
    """

    ticket: int
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    priority: int = 0


@dataclass(frozen=True)
class Abort:
    """Drop a request. Nothing happens if it is unknown or has ended."""

    ticket: int


@dataclass(frozen=True)
class Stop:
    """Drop all requests, free everything and end the thread."""


Command = Submit | Abort | Stop


@dataclass(frozen=True)
class Loaded:
    """The engine is ready.

    Attributes:
        vocab_size: V
        max_seq_len: largest number of tokens in a request, prompt and answer together.
        num_blocks, block_size: of the pool; 0 and 0 without a pool.
    """

    vocab_size: int
    max_seq_len: int
    num_blocks: int
    block_size: int


@dataclass(frozen=True)
class Increment:
    """What a step added to an answer.

    Attributes:
        ticket: of the request.
        token_ids: the new tokens of the answer; usually one, and none if an end-of-text id ended it.
        text: the new text. It may be empty, since text is held back that may turn out to belong to a stop
            string or to a character that is not complete yet.
        logprobs: one per new token if the request asked for them.
        finish_reason: None until the answer ends, then "stop", "length" or "error".
    """

    ticket: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: str | None = None


class Row(NamedTuple):
    """What a step computed of a request: `num_tokens` tokens from number `start` on.

    `is_final` says that a token was sampled after them. This is a tuple because every step makes one per
    running request.
    """

    ticket: int
    start: int
    num_tokens: int
    is_prefill: bool
    is_final: bool


@dataclass(frozen=True)
class EngineStats:
    """The engine in numbers, after a step. Those after `num_used_blocks` count only this step."""

    num_running: int = 0
    num_waiting: int = 0
    num_used_blocks: int = 0
    num_hit_tokens: int = 0
    num_admitted_tokens: int = 0
    num_preemptions: int = 0
    num_failed_steps: int = 0


@dataclass(frozen=True)
class StepReport:
    """Everything the event loop learns about a step. Mappings are by ticket.

    Attributes:
        num_tokens, seconds: tokens that the step computed, and how long it took.
        started: requests that were first scheduled in this step, each with the number of its prompt tokens
            that were found in the prefix cache.
        drafts: for each request that had drafts in this step, their number and how many were accepted.
        increments: what the step added to answers.
        refused: requests that the engine did not take, each with the reason.
        failed: requests that ended because their step failed, each with the reason.
        rows: what the step computed, one per request.
        stats: the engine after the step.
        cost: what steps cost by now, if that was measured anew.
    """

    num_tokens: int = 0
    seconds: float = 0.0
    started: Mapping[int, int] = field(default_factory=dict)
    drafts: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    increments: tuple[Increment, ...] = ()
    refused: Mapping[int, str] = field(default_factory=dict)
    failed: Mapping[int, str] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()
    stats: EngineStats = EngineStats()
    cost: CostModel | None = None


@dataclass(frozen=True)
class Stopped:
    """The thread has freed everything and ends. `error` says why if nobody asked it to stop."""

    error: str | None = None


Report = Loaded | StepReport | Stopped
