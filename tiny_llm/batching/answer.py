"""The answer of one request: its tokens, its text, and why it ends."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ..generation.generate import TextStream, Tokenizer

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class TokenLogprobs:
    """The log-probability of a sampled token, and ids and log-probabilities of the likeliest tokens."""

    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class GenerationResult:
    """What became of one request.

    `token_ids` are those generated, without the end-of-text id or stop token; `finish_reason` is "stop"
    after one of these or a stop string, "length" where a bound ended it. `logprobs` holds those of each token
    where they were asked for.
    """

    prompt_idx: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprobs, ...] = ()


class Answer:
    """What was generated for a request so far.

    `token_ids` are those of the answer, without the id that ended it. `finish_reason` is None until it ends.

    Args:
        prompt_idx: the caller's number for the request.
        tokenizer: decodes the answer and names the end-of-text ids.
        max_tokens: most tokens of the answer; 0 where the prompt leaves no room for one.
        stop: strings that end it.
        stop_token_ids: ids that end it, like those of end-of-text.

    Attributes:
        end_ids: all ids that end it.
    """

    def __init__(
        self,
        prompt_idx: int,
        tokenizer: Tokenizer,
        max_tokens: int,
        stop: tuple[str, ...] = (),
        stop_token_ids: Iterable[int] = (),
    ) -> None:
        self.prompt_idx = prompt_idx
        self.tokenizer = tokenizer
        self.max_tokens = max_tokens
        self.stop = stop
        self.end_ids = frozenset([*tokenizer.eos_token_ids, *stop_token_ids])
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self._newest_text: list[str] = []
        self._stream = TextStream(tokenizer, self._newest_text.append)

    @property
    def is_done(self) -> bool:
        """Whether it has ended."""
        return self.finish_reason is not None

    def accept(self, token: int) -> None:
        """Append a sampled token, unless it or a bound ends the answer."""
        raise NotImplementedError("week 2 day 6 task 3: Answer.accept is not written yet")

    def text(self) -> str:
        """The answer so far, up to a stop string."""
        raise NotImplementedError("week 2 day 6 task 3: Answer.text is not written yet")

    def result(self) -> GenerationResult:
        """What became of the request; ValueError, with `prompt_idx`, while the answer has not ended."""
        if self.finish_reason is None:
            raise ValueError(f"request {self.prompt_idx} is not done: {len(self.token_ids)} tokens so far")
        return GenerationResult(self.prompt_idx, self.text(), tuple(self.token_ids), self.finish_reason)
