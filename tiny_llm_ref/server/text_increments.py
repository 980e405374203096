"""The text of an answer piece by piece, without ever sending a part of a stop string."""

from ..generation.generate import TextStream, Tokenizer


class TextIncrements:
    """Turn the tokens of an answer into pieces of text that can be sent at once.

    The pieces together are the text of the answer, cut off before the first stop string. A piece that has
    been sent cannot be taken back. So the end of the text is held back as long as a stop string might begin
    there.

    Args:
        tokenizer: decodes the tokens.
        stop: strings that end the answer, none of them empty.

    Attributes:
        stop: the same strings.
        held: text that has not been sent. `stream` appends the text of each token, once its characters are
            complete.
        stream: decodes the tokens; knows `add(token)` and `finish()`.
    """

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...] = ()) -> None:
        self.stop = stop
        self.held = ""
        self.stream = TextStream(tokenizer, self.hold)

    def hold(self, text: str) -> None:
        """Append text to what has not been sent."""
        self.held += text

    def add(self, token: int) -> str:
        """Append a token of the answer, and return the text that is certain now. It may be empty."""
        self.stream.add(token)
        return self._send(len(self.held) - num_held_back(self.held, self.stop))

    def finish(self) -> str:
        """Return the rest of the text: what was held back, up to the first stop string."""
        self.stream.finish()
        return self._send(len(cut_off(self.held, self.stop)))

    def _send(self, num_characters: int) -> str:
        sent, self.held = self.held[:num_characters], self.held[num_characters:]
        return sent


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
