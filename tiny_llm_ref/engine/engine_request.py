"""What the engine knows about a request besides its numbers: parameters, text and why it ended."""

from collections.abc import Sequence as Items
from dataclasses import replace
from random import getrandbits

from kernel_runtime.limits import check_integer

from ..batching.answer import Answer, GenerationResult, TokenLogprobs
from ..generation.generate import Tokenizer, check_token_ids
from ..generation.sampler import SamplingParams
from ..scheduling.cache_salts import salt_sequence
from ..scheduling.sequence import Sequence
from ..structured.grammars import compile_grammar
from ..structured.step_masks import constrain


def check_request(prompt_ids: Items[int], priority: int, vocab_size: int, params: SamplingParams) -> None:
    """Refuse a request that the model could not run.

    Args:
        prompt_ids: at least one id, each at least 0 and below V.
        priority: 0 for the most urgent; not negative.
        vocab_size: V
        params: its ids must be below V, and `min_tokens` at most `max_tokens`.

    Raises:
        ValueError: a `token_id` is not an integer or not in the vocabulary; `priority` is not a non-negative
            integer; `max_tokens`, `top_k` or `seed` is not an integer; `logprobs` exceeds the size of the
            vocabulary; or `min_tokens` exceeds `max_tokens`.
    """
    check_token_ids(prompt_ids, vocab_size)
    params.check_vocabulary(vocab_size)
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise ValueError(f"min_tokens is {params.min_tokens}, more than max_tokens, {params.max_tokens}")
    check_integer("priority", priority, 0)
    for name, value in (("max_tokens", params.max_tokens), ("top_k", params.top_k), ("seed", params.seed)):
        if value is not None:
            check_integer(name, value, 0)


class EngineRequest(Answer):
    """A request: its sequence, its parameters and its answer.

    Args:
        sequence: its tokens as the scheduler sees them; max_num_tokens limits the answer.
        tokenizer: as for `Answer`.
        params: how to sample, and when to end.

    Attributes:
        params: a copy that always has a seed (drawn now if none was given), and has the end-of-text ids among
            its stop_token_ids.
        logprobs: the log-probabilities of each token of the answer, if the request asked for them.
        constraint: its place in the grammar of `structured_outputs`, or None.

    Raises:
        ValueError: the grammar is refused.
    """

    def __init__(self, sequence: Sequence, tokenizer: Tokenizer, params: SamplingParams) -> None:
        most = sequence.max_num_tokens - sequence.num_prompt_tokens
        super().__init__(sequence.id, tokenizer, most, params.stop, params.stop_token_ids)
        self.sequence = sequence
        seed = getrandbits(64) if params.seed is None else params.seed
        self.params = replace(params, seed=seed, stop_token_ids=sorted(self.end_ids))
        self.logprobs: list[TokenLogprobs] = []
        if params.cache_salt is not None:
            salt_sequence(sequence, params.cache_salt)
        self.constraint = None
        if params.structured_outputs is not None:
            self.constraint = compile_grammar(params.structured_outputs, tokenizer)
            constrain(sequence, self.constraint)

    def accept(self, token: int, logprobs: TokenLogprobs | None = None) -> None:
        """Do what `Answer.accept` does, and keep the log-probabilities of a token that is appended.

        Its constraint reads such a token too: here and nowhere else, so whatever is computed again or thrown
        away, the two agree. A grammar may come to a place where no token can follow, or where its matcher
        reaches a limit of its own. There the mask allows only the end, and the answer ends with "error".
        """
        num_before = len(self.token_ids)
        if num_before < len(self.params.forced):
            self._append_forced(token)
        else:
            super().accept(token)
        is_appended = len(self.token_ids) > num_before
        if logprobs is not None and is_appended:
            self.logprobs.append(logprobs)
        if self.constraint is None:
            return
        if is_appended:
            self.constraint.advance([token])
        elif token in self.tokenizer.eos_token_ids and not self.constraint.is_complete:
            self.finish_reason = "error"

    def accept_all(self, tokens: Items[int], logprobs: Items[TokenLogprobs] = ()) -> list[int]:
        """Accept tokens, one by one, until the answer ends.

        Args:
            tokens: at least one.
            logprobs: one per token, or none at all.

        Returns:
            The tokens it accepted, the one that ended the answer included. The others are dropped.
        """
        for count, token in enumerate(tokens, 1):
            self.accept(token, logprobs[count - 1] if logprobs else None)
            if self.is_done:
                return list(tokens[:count])
        return list(tokens)

    def _append_forced(self, token: int) -> None:
        """Append a forced token, which only `max_tokens` lets end the answer."""
        self.token_ids.append(token)
        if len(self.token_ids) == self.max_tokens:
            self.finish_reason = "length"

    def result(self) -> GenerationResult:
        """Return the finished answer, with log-probabilities if the request asked for them."""
        return replace(super().result(), logprobs=tuple(self.logprobs))
