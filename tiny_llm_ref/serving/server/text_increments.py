"""The text of an answer piece by piece, without ever sending a part of a stop string."""

from ...generation.generate import TextStream, Tokenizer


class TextIncrements:
    """Turn the tokens of an answer into pieces of text that can be sent at once.

    The pieces together are the text of the answer, cut off before the first stop string. A piece that has
    been sent cannot be taken back. So the end of the text is held back as long as a stop string might begin
    there.

    Args:
        tokenizer: decodes the tokens.
        stop: strings that end the answer, none of them empty.
    """

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...] = ()) -> None:
        self.stop = stop
        self._complete: list[str] = []
        self._stream = TextStream(tokenizer, self._complete.append)
        self._held = ""

    def add(self, token: int) -> str:
        """Append a token of the answer, and return the text that is certain now. It may be empty."""
        self._stream.add(token)
        self._held += "".join(self._complete)
        self._complete.clear()
        sent = self._held[: len(self._held) - num_held_back(self._held, self.stop)]
        return self._send(sent)

    def finish(self) -> str:
        """Return the rest of the text: what was held back, up to the first stop string."""
        self._stream.finish()
        self._held += "".join(self._complete)
        self._complete.clear()
        return self._send(cut_off(self._held, self.stop))

    def _send(self, text: str) -> str:
        self._held = self._held[len(text) :]
        return text


def num_held_back(text: str, stop: tuple[str, ...]) -> int:
    """Number of characters at the end of a text that must not be sent yet.

    They are those from the first stop string on, or from where one may have begun, whichever is earlier.
    """
    longest = max(map(len, stop), default=0)
    for number in range(min(longest - 1, len(text)), 0, -1):
        if any(string.startswith(text[-number:]) for string in stop):
            break
    else:
        number = 0
    return max(number, len(text) - len(cut_off(text, stop)))


def cut_off(text: str, stop: tuple[str, ...]) -> str:
    """Cut a text off before its first stop string."""
    return text[: min([text.index(string) for string in stop if string in text], default=len(text))]
