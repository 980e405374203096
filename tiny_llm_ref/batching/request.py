"""One request: its prompt, its cache, and its answer."""

from collections.abc import Sequence

import mlx.core as mx

from kernel_runtime.limits import check_integer

from ..generation.generate import Tokenizer, check_token_ids, encode_prompt, to_logprobs
from ..generation.sampler import SamplingParams, token_id
from ..model.dense_kv_cache import TinyKvFullCache
from ..model.qwen3 import Qwen3Model
from .answer import Answer

NO_BOUND = 2**63


class Request(Answer):
    """One request: its prompt is prefilled chunk by chunk, then its answer is decoded token by token.

    `offset` is the number of its tokens whose keys and values have been computed. `next_token` is the newest
    token. Its keys and values have not been computed yet.

    Args:
        model: computes chunks, and makes the cache.
        tokenizer: encodes the prompt, decodes the answer and lists the end-of-text ids.
        prompt: text, or token ids.
        prefill_max_step: largest number of tokens in a chunk.
        prompt_idx: the caller's number for the request.
        max_seq_len: largest number of tokens, prompt and answer together.
        params: how to sample, and when to end; greedy and without limit by default. Each request makes its
            own sampler.

    Raises:
        ValueError: the prompt is empty; its `num_tokens` exceed `max_seq_len`; it has a `token_id` that is
            not in the vocabulary; `prefill_max_step` is no integer or below 1; or `params` has a parameter
            that only the engine of week 3 supports.
    """

    def __init__(
        self,
        model: Qwen3Model,
        tokenizer: Tokenizer,
        prompt: str | Sequence[int],
        prefill_max_step: int = 128,
        prompt_idx: int = 0,
        max_seq_len: int | None = None,
        params: SamplingParams | None = None,
    ) -> None:
        check_integer("prefill_max_step", prefill_max_step, 1)
        self.prompt_ids = encode_prompt(tokenizer, prompt)
        check_token_ids(self.prompt_ids, model.config.vocab_size)
        if max_seq_len is not None and len(self.prompt_ids) > max_seq_len:
            raise ValueError(
                f"prompt {prompt_idx} has {len(self.prompt_ids)} tokens, but max_seq_len is {max_seq_len}: "
                "shorten the prompt or raise max_seq_len"
            )
        params = params or SamplingParams()
        params.check_week_2()
        most = min(
            params.max_tokens if params.max_tokens is not None else NO_BOUND,
            max_seq_len - len(self.prompt_ids) if max_seq_len is not None else NO_BOUND,
        )
        super().__init__(prompt_idx, tokenizer, most, params.stop, params.stop_token_ids)
        self.model = model
        self.prefill_max_step = prefill_max_step
        self.sampler = params.make_sampler()
        self.cache: list[TinyKvFullCache] = model.create_kv_cache()
        self.offset = 0

    @property
    def is_prefill_done(self) -> bool:
        return self.offset >= len(self.prompt_ids)

    @property
    def next_token(self) -> int:
        """The token to feed next. Raises ValueError, showing `prompt_idx`, unless the request is decoding."""
        if not self.token_ids or self.is_done:
            raise ValueError(f"request {self.prompt_idx} has no token to decode: {self._stage()}")
        return self.token_ids[-1]

    def try_prefill(self) -> int:
        """Compute the next chunk of the prompt. After the last chunk, sample the first token.

        That token may end the answer (`accept`). Only the last chunk needs logits (`logits_to_keep` 1,
        otherwise 0); earlier chunks are computed for their keys and values. Evaluate the chunk before
        returning, so that no lazy graph is carried over to the next one.

        After an error in the model or the sampler, or Ctrl-C, release the cache and set `offset` back to 0,
        so that the next call starts from the beginning.

        Returns:
            The number of tokens computed, at most `prefill_max_step`.

        Raises:
            ValueError: the prefill of request `prompt_idx` is already complete.
        """
        if self.is_prefill_done:
            raise ValueError(f"request {self.prompt_idx} has no prompt tokens to prefill: {self._stage()}")
        chunk = self.prompt_ids[self.offset : self.offset + self.prefill_max_step]
        end = self.offset + len(chunk)
        is_last = end == len(self.prompt_ids)
        try:
            logits = self.model(
                mx.array([chunk]), self.offset, self.cache, logits_to_keep=1 if is_last else 0
            )
            sampled = [self.sampler(to_logprobs(logits))] if is_last else []
            mx.eval(sampled, [layer.state for layer in self.cache])
        except BaseException:
            self.release()
            self.offset = 0
            raise
        self.offset = end
        if is_last:
            self.accept(token_id(sampled[0]))
        return len(chunk)

    def decode_done(self, token: int) -> None:
        """Record that `next_token` was computed and that `token` was sampled after it.

        Raises:
            ValueError: the request `prompt_idx` is not decoding: its prefill is incomplete, or it is done.
        """
        if not self.token_ids or self.is_done:
            raise ValueError(f"request {self.prompt_idx} is not decoding: {self._stage()}")
        self.offset += 1
        self.accept(token)

    def release(self) -> None:
        """Free the memory of the cache."""
        for layer in self.cache:
            layer.release()

    def _stage(self) -> str:
        if self.is_done:
            return f"it is done ({self.finish_reason})"
        if self.is_prefill_done:
            return "it is decoding"
        return f"{self.offset} of its {len(self.prompt_ids)} prompt tokens have been computed"
