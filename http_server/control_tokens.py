"""Conversations in a chat template whose control tokens are the template's alone.

A template writes control tokens as text, such as <|im_end|>, and the tokenizer finds them there. It would
find them in what users and tools write as well, so anyone could end their turn and write the system's.
Therefore, such text is replaced by numbers that no one can guess while the template is filled in. Afterwards,
the text around the template's control tokens is encoded as nothing but text.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from secrets import randbits
from typing import Any


@dataclass(frozen=True)
class ControlTokens:
    """The control tokens of a tokenizer, as texts and as ids, and what stands for them meanwhile.

    Args:
        ids: by text.
    """

    ids: dict[str, int]
    number: str = field(default_factory=lambda: f"{randbits(128):039}")

    @classmethod
    def of(cls, tokenizer: object) -> "ControlTokens":
        """Those of a tokenizer of Hugging Face. Others have none."""
        added: dict[int, Any] = getattr(tokenizer, "added_tokens_decoder", {})
        return cls({token.content: id for id, token in added.items() if token.special})

    def hidden(self, value: Any) -> Any:
        """Return a copy of a value of JSON in which numbers stand for control tokens, even in keys."""
        if isinstance(value, str):
            return self._pattern.sub(lambda found: f"{self.number}{self.ids[found[0]]:09}", value)
        if isinstance(value, dict):
            return {self.hidden(key): self.hidden(each) for key, each in value.items()}
        return [self.hidden(each) for each in value] if isinstance(value, list) else value

    def pieces(self, text: str) -> Iterator[str | int]:
        """Cut a text at its control tokens, and put back what numbers stand for in the rest."""
        text_of = {id: each for each, id in self.ids.items()}
        end = 0
        for found in self._pattern.finditer(text):
            yield self._shown(text[end : found.start()], text_of)
            yield self.ids[found[0]]
            end = found.end()
        yield self._shown(text[end:], text_of)

    def _shown(self, text: str, text_of: dict[int, str]) -> str:
        return re.sub(f"{self.number}([0-9]{{9}})", lambda found: text_of[int(found[1])], text)

    @property
    def _pattern(self) -> re.Pattern[str]:
        """Any control token, the longest that fits; nothing at all if there are none."""
        return re.compile("|".join(map(re.escape, sorted(self.ids, key=len, reverse=True))) or r"(?!)")


def encode_conversation(
    tokenizer: Any,
    messages: list[dict[str, Any]],
    settings: dict[str, Any],
    check_length: Callable[[int], None] | None = None,
) -> list[int]:
    """Token ids of messages in the chat template. Only the template makes control tokens.

    Args:
        tokenizer: has the template.
        messages: the conversation.
        settings: of the template; tools and whatever else a client has sent are text as well.
        check_length: called with the number of characters before they are encoded; None for a short prompt.
    """
    control = ControlTokens.of(tokenizer)
    hidden = control.hidden([messages, settings])
    is_harmless = hidden == [messages, settings]
    if is_harmless and check_length is None:
        ids: list[int] = tokenizer.apply_chat_template(messages, **settings)
        return ids
    text = tokenizer.apply_chat_template(hidden[0], tokenize=False, **hidden[1])
    pieces = list(control.pieces(text))
    if check_length is not None:
        check_length(sum(len(piece) for piece in pieces if isinstance(piece, str)))
    if is_harmless:
        return list(tokenizer.encode(text, add_special_tokens=False))
    return [id for piece in pieces for id in encoded(tokenizer, piece)]


def encoded(tokenizer: Any, piece: str | int) -> list[int]:
    """Token ids of a control token, or of text that is nothing but text."""
    if isinstance(piece, int):
        return [piece]
    ids: list[int] = tokenizer.encode(piece, add_special_tokens=False, split_special_tokens=True)
    return ids
