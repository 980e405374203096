"""What a model thinks before it answers: the text between <think> and </think>, at the start of an answer."""

from tiny_llm.server.text_increments import num_held_back

BEGIN, END = "<think>", "</think>"


class ThoughtParser:
    """Separate the thought at the start of an answer from the rest, while the answer grows.

    The whitespace around a thought and before what follows belongs to neither. A tag may come in pieces, so
    text is held back while it may be the beginning of one. Tags later in the answer are text.

    Args:
        has_begun: whether the prompt already ends with the tag, or within the thought.
    """

    def __init__(self, has_begun: bool = False) -> None:
        self.is_inside = has_begun
        self._may_begin = True  # nothing but whitespace and tags has come
        self._is_after = False  # nothing but whitespace has come after the thought
        self._held = ""

    def add(self, text: str, is_last: bool = False) -> tuple[str, str]:
        """Append a piece, and return what is certain to belong to the thought, and to the rest."""
        self._held += text
        if self._may_begin:
            self._begin(is_last)
        if self._may_begin:
            return "", ""
        thought = self._thought(is_last) if self.is_inside else ""
        if self.is_inside:
            return thought, ""
        if self._is_after:
            self._held = self._held.lstrip()
            self._is_after = not self._held
        rest, self._held = self._held, ""
        return thought, rest

    def _begin(self, is_last: bool) -> None:
        """Find out whether the answer begins with a thought. What is not the tag stays held."""
        start = self._held.lstrip()
        while start.startswith(BEGIN):
            self.is_inside = True
            start = start.removeprefix(BEGIN).lstrip()
        if self.is_inside:
            self._held = start
        self._may_begin = BEGIN.startswith(start) and not is_last

    def _thought(self, is_last: bool) -> str:
        """Take what is certain to belong to the thought. Its end, and whitespace before it, are not."""
        if END in self._held:
            thought, self._held = self._held.split(END, 1)
            self.is_inside, self._is_after = False, True
            return thought.rstrip()
        number = len(self._held)
        if not is_last:
            number = len(self._held[: number - num_held_back(self._held, (END,))].rstrip())
        thought, self._held = self._held[:number], self._held[number:]
        return thought.rstrip() if is_last else thought
