"""Text increments: they add up to the answer's text, and never show a part of a stop string."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fakes import FakeTokenizer
from tiny_llm.server.text_increments import TextIncrements, cut_off


def pieces_of(pieces: list[str], stop: tuple[str, ...]) -> list[str]:
    """What is sent for tokens whose texts are `pieces`; the last item is what `finish` sends."""
    increments = TextIncrements(FakeTokenizer(pieces), stop)
    return [*(increments.add(token) for token in range(len(pieces))), increments.finish()]


@pytest.mark.parametrize(
    ("pieces", "stop", "sent"),
    [
        (["ab", "cd"], (), ["ab", "cd", ""]),
        (["ab", "cd"], ("xy",), ["ab", "cd", ""]),
        (["ab", "cd", "e"], ("bcd",), ["a", "", "", ""]),
        (["ab", "cx", "e"], ("bcd",), ["a", "bcx", "e", ""]),
        (["a", "a", "a", "b"], ("aab",), ["", "", "a", "", ""]),
        (["ab"], ("b",), ["a", ""]),
        (["ab"], ("bc",), ["a", "b"]),
        (["abab"], ("ba", "ab"), ["", ""]),
        (["xab", "c"], ("abc", "b"), ["x", "", ""]),
        (["", "é", ""], ("é",), ["", "", "", ""]),
    ],
)
def test_pieces(pieces: list[str], stop: tuple[str, ...], sent: list[str]) -> None:
    assert pieces_of(pieces, stop) == sent


texts = st.text("ab", max_size=4)


@given(pieces=st.lists(texts, max_size=8), stop=st.lists(texts.filter(bool), max_size=3).map(tuple))
def test_any_pieces(pieces: list[str], stop: tuple[str, ...]) -> None:
    sent = pieces_of(pieces, stop)
    assert "".join(sent) == cut_off("".join(pieces), stop)
    for number in range(len(pieces)):
        text, now = "".join(pieces[: number + 1]), "".join(sent[: number + 1])
        is_complete = any(string in text for string in stop)
        held = text[len(now) :]
        assert text.startswith(now)
        assert is_complete or not held or any(string.startswith(held) for string in stop)
