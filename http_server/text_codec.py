"""Text to tokens and back for the event loop, in threads of its own."""

import asyncio
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from concurrent.futures import Future
from copy import copy
from typing import Any, Protocol, TypeVar

import msgspec

from tiny_llm.generation.generate import Tokenizer, encode_prompt
from tiny_llm.generation.structured_outputs import StructuredOutputsParams
from tiny_llm.server.thread_end import Worker
from tiny_llm.structured.grammars import compiled, tokenizer_of

from .control_tokens import encode_conversation
from .thoughts import BEGIN
from .token_texts import TokenBytes, bytes_of_token

T = TypeVar("T")
LONG_TEXT = 32 * 2**10
"""From so many characters on, a text takes longer than a step."""
SHRINKING = 4
"""At most so many characters become one where a tokenizer puts letters and accents together."""
NUM_COMPILERS = 4
"""How many grammars are compiled at once; some take seconds."""
NUM_LAST_TOKENS = 16
"""As many hold the tag that begins a thought, whatever they are."""


class PromptTooLongError(ValueError):
    """A prompt has more tokens than a request may have, as its number of characters shows."""


class ChatTokenizer(Tokenizer, Protocol):
    """A tokenizer that may have a chat template."""

    @property
    def has_chat_template(self) -> bool: ...

    def apply_chat_template(self, messages: list[dict[str, Any]], **kwargs: Any) -> list[int]: ...


class TextCodec:
    """Encode and decode without making the event loop wait.

    A tokenizer must not be used by two threads at once, so this one belongs to a single worker thread. The
    engine's thread has its own. Long texts have another worker thread, with a tokenizer that is loaded for
    the first of them, so that short ones need not wait for them. Grammars are compiled in other threads,
    which only need the bytes of the tokens.

    Args:
        load: loads the tokenizer; called in the worker thread.
    """

    def __init__(self, load: Callable[[], ChatTokenizer]) -> None:
        self._load = load
        self._worker = Worker("tokenizer")
        self._long_texts = Worker("long-texts")
        self._compilers = Worker("grammar", NUM_COMPILERS)
        self._loading = self._worker.submit(load)
        self._longest_token = self._worker.submit(lambda: longest_token(self._loading.result()))
        self._loading_again: list[Future[ChatTokenizer]] = []  # none or one, shared by all that are `limited`
        self._bytes: dict[int, TokenBytes] = {}
        self._most_tokens: int | None = None

    def limited(self, most_tokens: int) -> "TextCodec":
        """The same for prompts of at most so many tokens. Much longer ones are refused unencoded."""
        found = copy(self)
        found._most_tokens = most_tokens
        return found

    async def loaded(self) -> None:
        """Wait until the tokenizer is loaded. Raise what loading it raised."""
        await asyncio.wrap_future(self._loading)

    async def encode(self, text: str, add_special_tokens: bool = True) -> tuple[int, ...]:
        """Token ids of a text, in which control tokens such as <|im_end|> count as such.

        Raises:
            ValueError: the text has no tokens, or certainly too many.
        """

        def encode(tokenizer: ChatTokenizer) -> tuple[int, ...]:
            if add_special_tokens:
                return tuple(encode_prompt(tokenizer, text))
            return tuple(tokenizer.encode(text, add_special_tokens=False))

        if len(text) >= LONG_TEXT:
            await asyncio.shield(asyncio.wrap_future(self._longest_token))
            self._check_length(len(text))
        return await self._run(encode, len(text))

    async def encode_chat(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None, **options: Any
    ) -> tuple[int, ...]:
        """Token ids of messages in the chat template, which alone may write control tokens.

        Args:
            messages: the conversation.
            tools: what the model may call.
            options: of the template.

        Raises:
            ValueError: there is no chat template, or it refuses these messages; shows its `reason`. Or the
                text has certainly too many tokens.
        """

        def encode(tokenizer: ChatTokenizer) -> tuple[int, ...]:
            if not tokenizer.has_chat_template:
                raise ValueError("this model has no chat template: use /v1/completions")
            settings: dict[str, Any] = {"add_generation_prompt": True, **options}
            if tools:
                settings["tools"] = tools
            try:
                return tuple(encode_conversation(tokenizer, messages, settings, check))
            except PromptTooLongError:
                raise
            except Exception as error:  # whatever a template raises, the messages do not suit it
                raise ValueError(f"the chat template refuses these messages: {error}") from error

        try:
            size = len(msgspec.json.encode([messages, tools]))
        except RecursionError:  # the template will refuse it
            size = 0
        check = self._check_length if size >= LONG_TEXT else None
        return await self._run(encode, size)

    async def template(self) -> str:
        """The chat template; empty if there is none."""
        return await self._run(lambda tokenizer: str(getattr(tokenizer, "chat_template", "")))

    async def opens_thought(self, token_ids: Items[int]) -> bool:
        """Whether a prompt ends with the tag that begins a thought, so that the answer is within it."""
        return (await self.decode(token_ids[-NUM_LAST_TOKENS:])).rstrip().endswith(BEGIN)

    async def compile(self, outputs: StructuredOutputsParams) -> StructuredOutputsParams:
        """Compile a grammar, in another thread: a large one takes longer than many steps.

        Raises:
            ValueError: the grammar is refused; shows the reason.
        """
        await self._run(tokenizer_of)
        tokenizer = self._loading.result()
        return await asyncio.wrap_future(self._compilers.submit(compiled, outputs, tokenizer))

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
        for worker in (self._worker, self._long_texts, self._compilers):
            worker.close()

    async def _run(self, work: Callable[[ChatTokenizer], T], size: int = 0) -> T:
        """Do some work with the tokenizer, or with that of long texts."""
        worker, tokenizer = self._worker, self._loading
        if size >= LONG_TEXT:
            worker, tokenizer = self._long_texts, self._loaded_again()
        return await asyncio.wrap_future(worker.submit(lambda: work(tokenizer.result())))

    def _loaded_again(self) -> "Future[ChatTokenizer]":
        """The tokenizer of long texts."""
        if not self._loading_again:
            self._loading_again.append(self._long_texts.submit(self._load))
        return self._loading_again[0]

    def _check_length(self, num_characters: int) -> None:
        """Raise PromptTooLongError if no tokens could spell so many characters in a prompt."""
        longest = self._longest_token.result()
        if self._most_tokens is None or longest is None:
            return
        at_least = num_characters // longest
        if at_least > self._most_tokens:
            raise PromptTooLongError(
                f"this model's maximum context length is {self._most_tokens} tokens, but the prompt has at "
                f"least {at_least}: shorten it"
            )


def longest_token(tokenizer: object) -> int | None:
    """The most characters of a text that a token can stand for; None if that is not known."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    most = max(map(len, backend.get_vocab()))  # of bytes, or of characters, so no fewer than of characters
    return most if backend.normalizer is None else SHRINKING * most
