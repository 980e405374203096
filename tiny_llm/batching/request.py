"""One request: its prompt, its cache, and its answer."""

from collections.abc import Sequence

from ..generation.generate import Tokenizer, check_token_ids, encode_prompt
from ..generation.sampler import SamplingParams
from ..model.dense_kv_cache import TinyKvFullCache
from ..model.qwen3 import Qwen3Model
from .answer import Answer

NO_BOUND = 2**63


class Request(Answer):
    """One prompt on its way: prefilled chunk by chunk, then decoded token by token.

    `offset` is the number of its tokens whose keys and values are computed. `next_token` is the token
    sampled last, whose keys and values are not.

    Args:
        model: computes chunks, and makes the cache.
        tokenizer: encodes the prompt, decodes the answer and names the end-of-text ids.
        prompt: text, or token ids.
        prefill_max_step: most tokens of a chunk.
        prompt_idx: the caller's number for it.
        max_seq_len: most tokens of prompt and answer together.
        params: how it is sampled and when it ends; greedy and unbounded by default. Its sampler is its own.

    Raises:
        ValueError: the prompt is empty, its `num_tokens` are more than `max_seq_len`, it holds a `token_id`
            that is not in the vocabulary, `prefill_max_step` is not positive, or `params` ask for what only
            the engine of week 3 does.
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
        if prefill_max_step < 1:
            raise ValueError(f"prefill_max_step must be at least 1, got {prefill_max_step}")
        self.prompt_ids = encode_prompt(tokenizer, prompt)
        check_token_ids(self.prompt_ids, model.config.vocab_size)
        if max_seq_len is not None and len(self.prompt_ids) > max_seq_len:
            raise ValueError(
                f"prompt {prompt_idx} has {len(self.prompt_ids)} tokens and max_seq_len is {max_seq_len}: "
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
        """The token to feed next. ValueError, with `prompt_idx`, while there is none."""
        if not self.token_ids or self.is_done:
            raise ValueError(f"request {self.prompt_idx} has no token to decode: {self._stage()}")
        return self.token_ids[-1]

    def try_prefill(self) -> int:
        """Compute the next chunk of the prompt; the last one yields the first token.

        That token may end the answer (`accept`). Logits are asked for only there (`logits_to_keep` 1,
        else 0): earlier chunks are computed for their keys and values. The chunk is evaluated before
        returning, so no lazy graph is carried to the next. After an error in the model or the sampler, or
        Ctrl-C, the cache is released, `offset` is 0 again and the next call starts from the beginning.

        Returns:
            The number of tokens computed, at most `prefill_max_step`.

        Raises:
            ValueError: the prefill of request `prompt_idx` is complete.
        """
        raise NotImplementedError("week 2 day 7 task 2: Request.try_prefill is not written yet")

    def decode_done(self, token: int) -> None:
        """Record that `next_token` was computed and `token` sampled after it.

        Raises:
            ValueError: there was no token to decode.
        """
        raise NotImplementedError("week 2 day 6 task 3: Request.decode_done is not written yet")

    def release(self) -> None:
        """Give the memory of the cache back."""
        for layer in self.cache:
            layer.release()

    def _stage(self) -> str:
        if self.is_done:
            return f"it is done ({self.finish_reason})"
        if self.is_prefill_done:
            return "it is decoding"
        return f"{self.offset} of {len(self.prompt_ids)} prompt tokens are computed"
