"""Text to tokens and back for the event loop, in a thread of its own."""

import asyncio
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from typing import Any, Protocol, TypeVar

from ....generation.generate import Tokenizer, encode_prompt
from ....generation.given.structured_outputs import StructuredOutputsParams
from ...given.grammars import compiled, tokenizer_of
from .thoughts import BEGIN
from .thread_end import Worker
from .token_texts import TokenBytes, bytes_of_token

T = TypeVar("T")
NUM_LAST_TOKENS = 16
"""As many hold the tag that begins a thought, whatever they are."""


class ChatTokenizer(Tokenizer, Protocol):
    """A tokenizer that may have a chat template."""

    @property
    def has_chat_template(self) -> bool: ...

    def apply_chat_template(self, messages: list[dict[str, Any]], **kwargs: Any) -> list[int]: ...


class TextCodec:
    """Encode and decode without making the event loop wait.

    A tokenizer must not be used by two threads at once, so this one belongs to a single worker thread. The
    engine's thread has its own. Grammars are compiled in a second worker thread, which only needs the bytes
    of the tokens.

    Args:
        load: loads the tokenizer; called in the worker thread.
    """

    def __init__(self, load: Callable[[], ChatTokenizer]) -> None:
        self._worker = Worker("tokenizer")
        self._compiler = Worker("grammar")
        self._loading = self._worker.submit(load)
        self._bytes: dict[int, TokenBytes] = {}

    async def loaded(self) -> None:
        """Wait until the tokenizer is loaded. Raise what loading it raised."""
        await asyncio.wrap_future(self._loading)

    async def encode(self, text: str, add_special_tokens: bool = True) -> tuple[int, ...]:
        """Token ids of a text.

        Raises:
            ValueError: the text has no tokens.
        """
        if add_special_tokens:
            return await self._run(lambda tokenizer: tuple(encode_prompt(tokenizer, text)))
        return await self._run(lambda tokenizer: tuple(tokenizer.encode(text, add_special_tokens=False)))

    async def encode_chat(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None, **options: Any
    ) -> tuple[int, ...]:
        """Token ids of messages in the chat template.

        Args:
            messages: the conversation.
            tools: what the model may call.
            options: of the template.

        Raises:
            ValueError: there is no chat template, or it refuses these messages; shows its `reason`.
        """

        def encode(tokenizer: ChatTokenizer) -> tuple[int, ...]:
            if not tokenizer.has_chat_template:
                raise ValueError("this model has no chat template: use /v1/completions")
            settings: dict[str, Any] = {"add_generation_prompt": True, **options}
            if tools:
                settings["tools"] = tools
            try:
                return tuple(tokenizer.apply_chat_template(messages, **settings))
            except Exception as error:  # whatever a template raises, the messages do not suit it
                raise ValueError(f"the chat template refuses these messages: {error}") from error

        return await self._run(encode)

    async def template(self) -> str:
        """The chat template; empty if there is none."""
        return await self._run(lambda tokenizer: str(getattr(tokenizer, "chat_template", "")))

    async def opens_thought(self, token_ids: Items[int]) -> bool:
        """Whether a prompt ends with the tag that begins a thought, so that the answer is within it."""
        return (await self.decode(token_ids[-NUM_LAST_TOKENS:])).rstrip().endswith(BEGIN)

    async def compile(self, outputs: StructuredOutputsParams) -> StructuredOutputsParams:
        """Compile a grammar, in a thread of its own: a large one takes longer than a step.

        Raises:
            ValueError: the grammar is refused; shows the reason.
        """
        await self._run(tokenizer_of)
        tokenizer = self._loading.result()
        return await asyncio.wrap_future(self._compiler.submit(compiled, outputs, tokenizer))

    async def decode(self, token_ids: Items[int]) -> str:
        """Text of tokens."""
        return await self._run(lambda tokenizer: tokenizer.decode(list(token_ids)))

    async def bytes_of(self, token_ids: Iterable[int]) -> dict[int, TokenBytes]:
        """What each token adds to a text."""
        missing = set(token_ids) - self._bytes.keys()
        if missing:
            self._bytes |= await self._run(
                lambda tokenizer: {id: bytes_of_token(tokenizer, id) for id in missing}
            )
        return self._bytes

    def close(self) -> None:
        """Wait until the worker threads have ended, after what they are doing."""
        for worker in (self._worker, self._compiler):
            worker.close()

    async def _run(self, work: Callable[[ChatTokenizer], T]) -> T:
        tokenizer = self._loading
        return await asyncio.wrap_future(self._worker.submit(lambda: work(tokenizer.result())))
