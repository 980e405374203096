"""A server whose model says what a script says, however its text is cut into tokens."""

from typing import Any

import mlx.core as mx
import numpy as np
from starlette.applications import Starlette

from http_server.app import create_app
from http_server.config import ServerConfig
from tests.server.servers import MODEL
from tests.support.fakes import EOS, VOCAB_SIZE, FakeModel, FakeTokenizer
from tiny_llm import Engine, PrefixCachingBlockManager, SchedulerConfig

PROMPT = [1, 2, 3]


class ScriptedModel(FakeModel):
    """Continues prompts of three tokens with given tokens, then with the end-of-text id."""

    def __init__(self, script: list[int]) -> None:
        super().__init__()
        self.script = np.array([*script, EOS])

    def logits(self, x: mx.array) -> mx.array:
        positions = np.array(x)[..., 1].astype(int) - (len(PROMPT) - 1)
        logits = np.zeros((*positions.shape, VOCAB_SIZE), np.float32)
        token_ids = self.script[np.clip(positions, 0, len(self.script) - 1)]
        np.put_along_axis(logits, token_ids[..., None], 50.0, axis=-1)
        return mx.array(logits)


class ScriptTokenizer(FakeTokenizer):
    """Token i is the i-th piece of the script. Every conversation has the same tokens. Keeps the last one."""

    TEXT = "ABC"  # whose tokens are those of the prompt
    has_chat_template = True
    chat_template = '{{ tools }} <tool_call>{"name": …, "arguments": …}</tool_call>'

    def __init__(self, pieces: list[str]) -> None:
        super().__init__(["", *pieces, *[""] * (VOCAB_SIZE - 1 - len(pieces))])
        self.asked: dict[str, Any] = {}

    def apply_chat_template(
        self, messages: list[dict[str, Any]], tokenize: bool = True, **settings: Any
    ) -> list[int] | str:
        self.asked |= {"messages": messages, **settings}
        return PROMPT if tokenize else self.TEXT


def scripted_app(text: str, size: int) -> tuple[Starlette, ScriptTokenizer]:
    """An application whose answers are this text, with tokens of so many characters, and its tokenizer."""
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    assert len(pieces) < VOCAB_SIZE, "the script has too many tokens"
    tokenizer = ScriptTokenizer(pieces)
    config = SchedulerConfig(16, 4)

    def make() -> Engine:
        model = ScriptedModel(list(range(1, len(pieces) + 1)))
        return Engine(model, ScriptTokenizer(pieces), config, 128, PrefixCachingBlockManager(99, 4))

    return create_app(make, lambda: tokenizer, ServerConfig((MODEL,), config)), tokenizer


class TurnTokenizer(ScriptTokenizer):
    """Lengthens the prompt by what the script has before the next turn of the assistant."""

    starts: list[int]

    def apply_chat_template(self, messages: list[dict[str, Any]], **settings: Any) -> list[int]:
        turn = sum(message["role"] == "assistant" for message in messages)
        return super().apply_chat_template(messages, **settings) + [1] * self.starts[turn]


def turns_app(*texts: str, size: int = 2) -> tuple[Starlette, TurnTokenizer]:
    """An application that says one text after the other in the turns of a conversation, and its tokenizer."""
    script: list[int] = []
    pieces: list[str] = []
    starts: list[int] = []
    for text in texts:
        starts.append(len(script))
        new = [text[start : start + size] for start in range(0, len(text), size)]
        script += [*range(len(pieces) + 1, len(pieces) + len(new) + 1), EOS]
        pieces += new
    assert len(pieces) < VOCAB_SIZE, "the script has too many tokens"
    tokenizer = TurnTokenizer(pieces)
    tokenizer.starts = starts
    config = SchedulerConfig(16, 4)

    def make() -> Engine:
        model, blocks = ScriptedModel(script), PrefixCachingBlockManager(99, 4)
        return Engine(model, TurnTokenizer(pieces), config, 128, blocks)

    return create_app(make, lambda: tokenizer, ServerConfig((MODEL,), config)), tokenizer
