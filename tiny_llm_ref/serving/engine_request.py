"""What the engine knows of a request beyond its numbers: how it is sampled, its text and why it ends."""

from collections.abc import Sequence as Items

from ..generate import Tokenizer
from ..request import FinishReason, GenerationResult
from ..sampler import SamplingParams
from .sequence import Sequence


def check_request(prompt_ids: Items[int], priority: int, vocab_size: int) -> None:
    """Refuse what no model could be given.

    Args:
        prompt_ids: at least one id, each from 0 to below the size of the vocabulary.
        priority: 0 for the most urgent, or more.
        vocab_size: V

    Raises:
        ValueError: an id is no integer or outside the vocabulary, or the priority is no integer from 0 on.
    """
    for place, token in enumerate(prompt_ids):
        if not is_integer(token):
            raise ValueError(f"token {place} of the prompt is {token!r}: token ids are Python integers")
        if not 0 <= token < vocab_size:
            raise ValueError(
                f"token {place} of the prompt is {token}, and the vocabulary ends with {vocab_size - 1}"
            )
    if not is_integer(priority) or priority < 0:
        raise ValueError(
            f"priority is an integer, 0 for the most urgent and never negative, got {priority!r}"
        )


def is_integer(value: object) -> bool:
    """Whether it is an integer; True and False are not meant as such."""
    return isinstance(value, int) and not isinstance(value, bool)


class EngineRequest:
    """A sequence, how it is sampled, and the answer so far.

    `token_ids` are those of the answer, without the end-of-text id. `finish_reason` is None until the answer
    ends, "stop" or "length" as in week 2, and stays None where the request is aborted.

    Args:
        sequence: its tokens, as the scheduler sees them; the answer ends with its max_num_tokens.
        tokenizer: decodes the answer and names the end-of-text ids.
        params: how it is sampled and when it ends; it gets a sampler of its own.
    """

    def __init__(self, sequence: Sequence, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self.sequence = sequence
        self.tokenizer = tokenizer
        self.sampler = params.make_sampler()
        self.stop = params.stop
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self._max_new_tokens = sequence.max_num_tokens - sequence.num_prompt_tokens

    @property
    def is_done(self) -> bool:
        """Whether the answer has ended."""
        return self.finish_reason is not None

    def accept(self, token: int) -> None:
        """Append a sampled token to the answer, unless it or a bound ends it."""
        if token in self.tokenizer.eos_token_ids:
            self.finish_reason = "stop"
        elif self._max_new_tokens == 0:
            self.finish_reason = "length"
        else:
            self.token_ids.append(token)
            if any(string in self.tokenizer.decode(self.token_ids) for string in self.stop):
                self.finish_reason = "stop"
            elif len(self.token_ids) == self._max_new_tokens:
                self.finish_reason = "length"

    def text(self) -> str:
        """The answer so far, up to a stop string."""
        text = self.tokenizer.decode(self.token_ids)
        ends = [text.index(string) for string in self.stop if string in text]
        return text[: min(ends)] if ends else text

    def result(self) -> GenerationResult:
        """What came of it; ValueError while the answer has not ended."""
        if self.finish_reason is None:
            raise ValueError(f"request {self.sequence.id} is not done: {len(self.token_ids)} tokens so far")
        return GenerationResult(self.sequence.id, self.text(), tuple(self.token_ids), self.finish_reason)
