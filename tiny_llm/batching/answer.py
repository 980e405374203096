"""The answer to one request: its tokens, its text, and why it ended."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ..generation.generate import TextStream, Tokenizer

FinishReason = Literal["stop", "length", "error"]


@dataclass(frozen=True)
class TokenLogprobs:
    """The log-probability of a sampled token, and ids and log-probabilities of the likeliest tokens."""

    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class GenerationResult:
    """The finished answer to one request.

    `token_ids` are the generated tokens, without the end-of-text id or stop token. `finish_reason` is "stop"
    if such an id or a stop string ended the answer, "length" if a limit did, and "error" if its grammar
    allowed no further token (day 3.8). `logprobs` has an entry per token if the request asked for
    log-probabilities.
    """

    prompt_idx: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprobs, ...] = ()


class Answer:
    """The answer generated for a request so far.

    `token_ids` are the tokens of the answer, without the id that ended it. `finish_reason` is None until the
    answer ends.

    Args:
        prompt_idx: the caller's number for the request.
        tokenizer: decodes the answer and lists the end-of-text ids.
        max_tokens: largest number of tokens in the answer; 0 if the prompt leaves no room for any.
        stop: strings that end the answer.
        stop_token_ids: ids that end the answer, like the end-of-text ids.

    Attributes:
        end_ids: all ids that end the answer.

    To look for stop strings, add each token to `_stream`, which appends the text it completes to the list
    `_newest_text`. Shorten that list in place, since the stream keeps appending to this very list.
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
        """Whether the answer has ended."""
        return self.finish_reason is not None

    def accept(self, token: int) -> None:
        """Append a sampled token, and end the answer if this token or a limit ends it.

        An id in `end_ids` ends the answer with "stop" and is not appended. If `max_tokens` is 0, any other
        token ends it with "length" and is not appended either. Otherwise, the token is appended. It ends the
        answer with "stop" if it completes a stop string, and with "length" if it is the last one allowed.
        """
        raise NotImplementedError("week 2 day 6 task 3: Answer.accept is not written yet")

    def text(self) -> str:
        """Text of the answer so far, cut off before the first stop string."""
        raise NotImplementedError("week 2 day 6 task 3: Answer.text is not written yet")

    def result(self) -> GenerationResult:
        """Return the finished answer. Raise ValueError, showing `prompt_idx`, if it has not ended yet."""
        if self.finish_reason is None:
            raise ValueError(
                f"request {self.prompt_idx} is not done: it has {len(self.token_ids)} tokens so far"
            )
        return GenerationResult(self.prompt_idx, self.text(), tuple(self.token_ids), self.finish_reason)
