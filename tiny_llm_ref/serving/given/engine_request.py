"""What the engine knows of a request beyond its numbers: how it is sampled, its text and why it ends."""

from collections.abc import Sequence as Items
from dataclasses import replace
from random import getrandbits

from ...batching.answer import Answer, GenerationResult, TokenLogprobs
from ...generation.generate import Tokenizer, check_token_ids
from ...generation.sampler import SamplingParams
from ..sequence import Sequence


def check_request(prompt_ids: Items[int], priority: int, vocab_size: int, params: SamplingParams) -> None:
    """Refuse what no model could be given.

    Args:
        prompt_ids: at least one id, each from 0 to below the size of the vocabulary.
        priority: 0 for the most urgent, or more.
        vocab_size: V
        params: ids in them are below V, and `min_tokens` at most `max_tokens`.

    Raises:
        ValueError: a `token_id` is no integer or outside the vocabulary, the `priority` is no integer from 0
            on, more `logprobs` are asked for than there are tokens, or `min_tokens` are more than
            `max_tokens`.
    """
    check_token_ids(prompt_ids, vocab_size)
    params.check_vocabulary(vocab_size)
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise ValueError(f"min_tokens is {params.min_tokens}, more than max_tokens, {params.max_tokens}")
    if not isinstance(priority, int) or isinstance(priority, bool) or priority < 0:
        raise ValueError(
            f"priority is an integer, 0 for the most urgent and never negative, got {priority!r}"
        )


class EngineRequest(Answer):
    """A sequence, how it is sampled, and its answer.

    Args:
        sequence: its tokens, as the scheduler sees them; the answer ends with its max_num_tokens.
        tokenizer: as for `Answer`.
        params: how it is sampled and when it ends.

    Attributes:
        params: the same, with a seed that is drawn now if none was given, and the end-of-text ids among the
            stop_token_ids.
        logprobs: of each token of the answer, if they are asked for.
    """

    def __init__(self, sequence: Sequence, tokenizer: Tokenizer, params: SamplingParams) -> None:
        most = sequence.max_num_tokens - sequence.num_prompt_tokens
        super().__init__(sequence.id, tokenizer, most, params.stop, params.stop_token_ids)
        self.sequence = sequence
        seed = getrandbits(64) if params.seed is None else params.seed
        self.params = replace(params, seed=seed, stop_token_ids=sorted(self.end_ids))
        self.logprobs: list[TokenLogprobs] = []

    def accept(self, token: int, logprobs: TokenLogprobs | None = None) -> None:
        """Append a sampled token, with its log-probabilities, unless it or a bound ends the answer."""
        num_before = len(self.token_ids)
        super().accept(token)
        if logprobs is not None and len(self.token_ids) > num_before:
            self.logprobs.append(logprobs)

    def result(self) -> GenerationResult:
        """What became of the request, with the log-probabilities that it asked for."""
        return replace(super().result(), logprobs=tuple(self.logprobs))
