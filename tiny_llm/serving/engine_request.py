"""What the engine knows of a request beyond its numbers: how it is sampled, its text and why it ends."""

from ..generate import Tokenizer
from ..request import FinishReason, GenerationResult
from ..sampler import SamplingParams
from .sequence import Sequence


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
