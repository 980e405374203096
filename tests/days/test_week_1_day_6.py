"""Week 1 day 6: the prompt, log-probabilities, the loop, and text as it comes."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.check import check_close, check_equal, check_value_error, normal
from tests.support.counting import check_calls, check_decodes_once, count_calls
from tests.support.fakes import EOS, Call, FakeModel, FakeTokenizer, continuation
from tests.support.oracles import exact, log_softmax
from tests.support.text_tokenizers import TOKENIZERS, ByteTokenizer, DecodedTokens, WordTokenizer
from tiny_llm import simple_generate
from tiny_llm.generation.generate import TextStream, encode_prompt, to_logprobs

# --- task 1 ------------------------------------------------------------------------------------------------

BOS_ID = 99


class BosTokenizer(FakeTokenizer):
    """Adds a beginning-of-text token, written "<s>", unless it is told not to."""

    bos_token = "<s>"

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        is_spelled_out = text.startswith("<s>")
        tokens = super().encode(text.removeprefix("<s>"))
        return [BOS_ID] * (is_spelled_out + add_special_tokens) + tokens


def test_task_1_text_is_encoded() -> None:
    check_equal(encode_prompt(FakeTokenizer(), "CAB"), [3, 1, 2], "tokens of the prompt")


def test_task_1_spaces_of_a_prompt_are_kept() -> None:
    tokenizer = FakeTokenizer()
    check_equal(encode_prompt(tokenizer, " A\n"), tokenizer.encode(" A\n"), "tokens of a prompt with spaces")


@pytest.mark.parametrize("prompt", [[5, 3, 9], (5, 3, 9)], ids=str)
def test_task_1_token_ids_are_taken_as_they_are(prompt: Sequence[int]) -> None:
    check_equal(encode_prompt(BosTokenizer(), prompt), [5, 3, 9], "tokens of a prompt of ids")


def test_task_1_the_list_given_stays_the_callers() -> None:
    prompt = [5, 3, 9]
    encode_prompt(FakeTokenizer(), prompt).append(7)
    check_equal(prompt, [5, 3, 9], "the prompt after its tokens were added to")


def test_task_1_the_tokenizer_may_keep_its_list() -> None:
    kept = [3, 1, 2]
    tokenizer = FakeTokenizer()
    tokenizer.encode = lambda text, add_special_tokens=True: kept  # type: ignore[method-assign]
    encode_prompt(tokenizer, "CAB").append(7)
    check_equal(kept, [3, 1, 2], "the tokenizer's list after the prompt's tokens were added to")


@pytest.mark.parametrize("prompt", ["CAB", "<s>CAB"])
def test_task_1_one_beginning_of_text(prompt: str) -> None:
    check_equal(encode_prompt(BosTokenizer(), prompt), [BOS_ID, 3, 1, 2], f"tokens of {prompt!r}")


@pytest.mark.parametrize("prompt", ["A<s>", " <s>A", "\n<s>A"], ids=repr)
def test_task_1_a_beginning_of_text_later_on_is_not_the_first(prompt: str) -> None:
    tokens = encode_prompt(BosTokenizer(), prompt)
    check_equal(tokens[0], BOS_ID, f"first token of {prompt!r}, which starts with another")


@pytest.mark.parametrize("prompt", ["", [], ()], ids=repr)
def test_task_1_a_prompt_without_tokens_is_refused(prompt: str | Sequence[int]) -> None:
    with check_value_error():
        encode_prompt(FakeTokenizer(), prompt)


def test_task_1_a_beginning_of_text_alone_is_a_prompt() -> None:
    check_equal(encode_prompt(BosTokenizer(), ""), [BOS_ID], "tokens of an empty text")


@pytest.mark.parametrize(("B", "L"), [(1, 1), (1, 5), (3, 5), (5, 5)])
def test_task_1_logprobs_of_the_last_position(B: int, L: int) -> None:
    logits = 3 * normal(B, L, 11, seed=1)
    last = exact(logits)[:, -1]
    mistakes = {
        "the log-probabilities of the first position": log_softmax(exact(logits)[:, 0]),
        "the logits as they are": last,
        "the probabilities, without a logarithm": np.exp(log_softmax(last)),
    }
    check_close(to_logprobs(logits), log_softmax(last), "log-probabilities", mistakes=mistakes)


def test_task_1_logprobs_of_large_logits() -> None:
    logits = 1000 * normal(2, 3, 11, seed=2)
    check_close(to_logprobs(logits), log_softmax(exact(logits)[:, -1]), "log-probabilities of large logits")


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_task_1_logprobs_are_float32(dtype: mx.Dtype) -> None:
    logits = 2 * normal(2, 3, 5003, seed=3, dtype=dtype)
    actual = to_logprobs(logits)
    check_equal(actual.dtype, mx.float32, "type of the log-probabilities")
    check_close(actual, log_softmax(exact(logits)[:, -1]), "log-probabilities")


# --- task 2 ------------------------------------------------------------------------------------------------


def greedy(logprobs: mx.array) -> mx.array:
    return mx.argmax(logprobs, axis=-1)


class ScriptedModel:
    """Continues any prompt by the tokens of a script, then by its last one for ever."""

    def __init__(self, *script: int) -> None:
        self.script = script
        self.num_calls = 0

    def __call__(self, tokens, offset=0, cache=None, logits_to_keep=None):  # type: ignore[no-untyped-def]
        token = self.script[min(self.num_calls, len(self.script) - 1)]
        self.num_calls += 1
        logits = normal(1, tokens.shape[1], 61, seed=self.num_calls)
        logits[..., token] = 9.0
        return logits


def text_of(tokens: Sequence[int]) -> str:
    return FakeTokenizer().decode(tokens)


@pytest.mark.parametrize("prompt", ["A", "HELLO", "COURSE"])
def test_task_3_text_of_the_likeliest_tokens(prompt: str) -> None:
    text = simple_generate(FakeModel(), FakeTokenizer(), prompt, greedy, max_tokens=6)
    tokens = FakeTokenizer().encode(prompt)
    expected = text_of(continuation(tokens, 6))
    alone = tokens[-1:]
    for _ in range(6):
        alone = [*alone, continuation(alone[-1:], 1)[0]]
    mistakes = {
        "what comes when only the last token is fed": text_of(alone[1:]),
        "the prompt and its continuation": prompt + expected,
        "the token after the prompt, again and again": expected[:1] * 6,
    }
    check_equal(text, expected, f"continuation of {prompt!r}", mistakes)


def test_task_3_each_step_feeds_the_whole_sequence() -> None:
    model, prompt = FakeModel(), FakeTokenizer().encode("HELLO")
    simple_generate(model, FakeTokenizer(), "HELLO", greedy, max_tokens=4)
    tokens = prompt + continuation(prompt, 3)
    expected = [Call((0,), (tuple(tokens[:length]),), logits_to_keep=1) for length in (5, 6, 7, 8)]
    check_equal(model.calls, expected, "calls of the model")


@pytest.mark.parametrize("max_tokens", [1, 2, 7])
def test_task_3_at_most_max_tokens(max_tokens: int) -> None:
    model = ScriptedModel(3, 1, 2)
    text = simple_generate(model, FakeTokenizer(), "HELLO", greedy, max_tokens=max_tokens)
    check_equal(text, "CABBBBB"[:max_tokens], f"text with {max_tokens=}")
    check_equal(model.num_calls, max_tokens, f"calls of the model with {max_tokens=}")


def test_task_3_no_tokens_asked_for_is_no_text() -> None:
    model = ScriptedModel(3)
    check_equal(
        simple_generate(model, FakeTokenizer(), "HELLO", greedy, max_tokens=0), "", "text of 0 tokens"
    )
    check_equal(model.num_calls, 0, "calls of the model for 0 tokens")


def test_task_3_256_tokens_unless_asked_otherwise() -> None:
    text = simple_generate(ScriptedModel(3), FakeTokenizer(), "A", greedy)
    check_equal(len(text), 256, "length of the text without max_tokens")


def test_task_3_end_of_text_ends_the_loop_and_is_not_in_the_text() -> None:
    model = ScriptedModel(3, 1, 2, EOS, 4)
    check_equal(simple_generate(model, FakeTokenizer(), "HELLO", greedy, max_tokens=9), "CAB", "text")
    check_equal(model.num_calls, 4, "calls of the model until the end of text")


def test_task_3_end_of_text_as_the_very_first_token() -> None:
    model, pieces = ScriptedModel(EOS, 4), []
    check_equal(simple_generate(model, FakeTokenizer(), "HELLO", greedy, 9, pieces.append), "", "text")
    check_equal(model.num_calls, 1, "calls of the model")
    check_equal(pieces, [], "pieces of text")


@pytest.mark.parametrize("end", [7, 8, 9])
def test_task_3_any_end_of_text_id_ends_the_loop(end: int) -> None:
    tokenizer = FakeTokenizer()
    tokenizer.eos_token_ids = {7, 8, 9}
    text = simple_generate(ScriptedModel(3, end, 2), tokenizer, "HELLO", greedy, max_tokens=9)
    check_equal(text, "C", f"text that ends with token {end}")


def test_task_3_without_an_end_of_text_id_nothing_ends_early() -> None:
    tokenizer = FakeTokenizer()
    tokenizer.eos_token_ids = set()
    text = simple_generate(ScriptedModel(3, EOS, 2), tokenizer, "HELLO", greedy, max_tokens=3)
    check_equal(text, "C@B", "text of a tokenizer without end-of-text ids")


@pytest.mark.parametrize("prompt", ["A@B", "AB@", "@"])
def test_task_3_end_of_text_in_the_prompt_ends_nothing(prompt: str) -> None:
    text = simple_generate(ScriptedModel(3, 1, 2), FakeTokenizer(), prompt, greedy, max_tokens=3)
    check_equal(text, "CAB", f"continuation of {prompt!r}, where @ is the end of a text")


def test_task_3_the_sampler_sees_logprobs_of_one_row() -> None:
    seen = []

    def recording(logprobs: mx.array) -> mx.array:
        seen.append(logprobs)
        return greedy(logprobs)

    model = FakeModel()
    simple_generate(model, FakeTokenizer(), "HELLO", recording, max_tokens=3)
    check_equal([logprobs.shape for logprobs in seen], [(1, 61)] * 3, "shapes of what the sampler gets")
    for step, logprobs in enumerate(seen):
        total = np.exp(exact(logprobs)).sum(axis=-1)
        check_close(mx.array(total), np.ones(1), f"sum of the probabilities of step {step}")


def test_task_3_the_sampler_chooses() -> None:
    choices = iter([3, 1, 2, EOS])
    model = FakeModel()
    text = simple_generate(model, FakeTokenizer(), "HELLO", lambda _: mx.array([next(choices)]), max_tokens=9)
    check_equal(text, "CAB", "text of the sampler's tokens")
    check_equal(model.calls[-1].tokens[0], (8, 5, 12, 12, 15, 3, 1, 2), "tokens of the last call")


def test_task_3_an_empty_prompt_is_refused() -> None:
    model = ScriptedModel(3)
    with check_value_error():
        simple_generate(model, FakeTokenizer(), "", greedy)
    check_equal(model.num_calls, 0, "calls of the model for an empty prompt")


def test_task_3_one_beginning_of_text_is_fed() -> None:
    model = FakeModel()
    simple_generate(model, BosTokenizer(), "<s>CAB", greedy, max_tokens=1)
    check_equal(model.calls[0].tokens[0], (BOS_ID, 3, 1, 2), "tokens of the first call")


# --- task 3 ------------------------------------------------------------------------------------------------


BROKEN = "\N{REPLACEMENT CHARACTER}"


def stream_pieces(tokenizer: FakeTokenizer, tokens: Sequence[int]) -> tuple[list[str], str]:
    """What was sent with each token, what at the end, and the text returned; "" where nothing was sent."""
    sent: list[str] = []
    stream = TextStream(tokenizer, sent.append)
    pieces = []
    for token in tokens:
        num_before = len(sent)
        stream.add(token)
        pieces.append("".join(sent[num_before:]))
    num_before = len(sent)
    text = stream.finish()
    pieces.append("".join(sent[num_before:]))
    check_equal([piece for piece in sent if not piece], [], "pieces without text")
    return pieces, text


def test_task_2_each_character_is_handed_on_at_once() -> None:
    pieces, text = stream_pieces(FakeTokenizer(), [3, 1, 2])
    check_equal(pieces, ["C", "A", "B", ""], "pieces after each token and at the end")
    check_equal(text, "CAB", "text")


@pytest.mark.parametrize("character", ["é", "€", "語", "🦙"])
def test_task_2_a_character_of_several_tokens_waits_until_it_is_whole(character: str) -> None:
    tokens = list(f"a{character}b".encode())
    pieces, text = stream_pieces(ByteTokenizer(), tokens)
    check_equal(pieces, ["a", *[""] * (len(tokens) - 3), character, "b", ""], "pieces after each token")
    check_equal(text, f"a{character}b", "text")


def test_task_2_a_family_of_emoji_arrives_part_by_part() -> None:
    family = "👩‍👩‍👧"
    pieces, text = stream_pieces(ByteTokenizer(), list(family.encode()))
    check_equal([piece for piece in pieces if piece], list(family), "pieces")
    check_equal(text, family, "text")


def test_task_2_a_character_cut_off_is_handed_on_at_the_end() -> None:
    pieces, text = stream_pieces(ByteTokenizer(), list("a🦙".encode())[:-1])
    mistakes = {
        "what comes when U+FFFD is sent while the character may still come": ["a", BROKEN, "", "", ""]
    }
    check_equal(pieces, ["a", "", "", "", BROKEN], "pieces after each token and at the end", mistakes)
    check_equal(text, f"a{BROKEN}", "text")


def test_task_2_bytes_that_never_become_a_character_do_not_stop_the_text() -> None:
    pieces, text = stream_pieces(ByteTokenizer(), [*b"a", 0xE2, *b"bc"])
    check_equal("".join(pieces), f"a{BROKEN}bc", "pieces joined")
    check_equal(text, f"a{BROKEN}bc", "text")


class PieceTokenizer(FakeTokenizer):
    """Tokens of several bytes, which end in the middle of a character."""

    parts = (b"ab\xc3", b"\xa9c\xf0\x9f", b"\xa6", b"\x99d")

    def decode(self, token_ids: Sequence[int]) -> str:
        return b"".join(self.parts[token] for token in token_ids).decode(errors="replace")


def test_task_2_what_stands_before_a_broken_character_is_handed_on() -> None:
    pieces, text = stream_pieces(PieceTokenizer(), [0, 1])
    mistakes = {"what comes when all waits for a character that is not whole": ["", "", f"abéc{BROKEN}"]}
    check_equal(pieces, ["ab", "éc", BROKEN], "pieces after each token and at the end", mistakes)
    check_equal(text, f"abéc{BROKEN}", "text")


class TextsTokenizer(FakeTokenizer):
    """Reads as the first of some texts after one token, as the second after two, and so on."""

    def decode(self, token_ids: Sequence[int]) -> str:
        return ["", *(self.pieces or ())][len(token_ids)]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([BROKEN, f"{BROKEN}b"], ["", f"{BROKEN}b", ""]),
        ([f"a{BROKEN}{BROKEN}", "a🦙"], ["a", "🦙", ""]),
        (["ab ", "ab", "ab.c"], ["ab ", "", "c", ""]),
    ],
    ids=["broken at the start", "two at once", "shorter for a while"],
)
def test_task_2_what_is_sent_while_the_text_changes(texts: list[str], expected: list[str]) -> None:
    pieces, text = stream_pieces(TextsTokenizer(texts), range(len(texts)))
    check_equal(pieces, expected, f"pieces after each token and at the end of {texts}")
    check_equal(text, "".join(expected), f"text, which is what was sent of {texts}")


def test_task_2_text_of_a_token_depends_on_those_before() -> None:
    pieces, text = stream_pieces(WordTokenizer(), [0, 1, 2, 1])
    check_equal(pieces, ["the", " cat", " sat", " cat", ""], "pieces after each token and at the end")
    check_equal(text, "the cat sat cat", "text")


def test_task_2_spaces_at_the_end_are_handed_on() -> None:
    pieces, _ = stream_pieces(ByteTokenizer(), list(b"a \n"))
    check_equal(pieces, ["a", " ", "\n", ""], "pieces after each token and at the end")


def test_task_2_nothing_added_is_no_text() -> None:
    check_equal(stream_pieces(ByteTokenizer(), []), ([""], ""), "pieces and text of no tokens")


def test_task_2_text_without_anyone_listening() -> None:
    stream = TextStream(ByteTokenizer())
    for token in "a🦙".encode():
        stream.add(token)
    check_equal(stream.finish(), "a🦙", "text of a stream without on_text")


def test_task_2_nothing_is_decoded_for_nobody() -> None:
    tokenizer = ByteTokenizer()
    decode = {"decode": count_calls(tokenizer, "decode")}
    stream = TextStream(tokenizer)
    for token in b"abc":
        stream.add(token)
    check_calls(decode, 0, "for three tokens of a stream without on_text")
    stream.finish()
    check_calls(decode, 1, "at the end of a stream without on_text")


@pytest.mark.parametrize("token", [65, 0xFF], ids=["characters", "bytes that are none"])
def test_task_2_a_token_costs_the_same_after_any_number(token: int) -> None:
    tokenizer = ByteTokenizer()
    decoded = DecodedTokens(tokenizer)
    sent: list[str] = []
    stream = TextStream(tokenizer, sent.append)
    for _ in range(1000):
        stream.add(token)
    decoded.check(1000, "a stream")
    check_equal(stream.finish(), tokenizer.decode([token] * 1000), "text of 1,000 tokens")
    check_equal("".join(sent), tokenizer.decode([token] * 1000), "pieces joined")


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(data=st.data())
def test_task_2_pieces_join_to_the_text(kind: str, data: st.DataObject) -> None:
    tokenizer, tokens = TOKENIZERS[kind]
    ids = data.draw(tokens)
    pieces, whole = stream_pieces(tokenizer, ids)
    check_equal(whole, tokenizer.decode(ids), "text")
    check_equal("".join(pieces), whole, "pieces joined")


def test_task_3_nothing_is_decoded_for_nobody() -> None:
    check_decodes_once(simple_generate)


@given(text=st.text("aé語🦙 \n", max_size=40))
def test_task_2_each_character_of_a_long_text_is_handed_on_at_once(text: str) -> None:
    pieces, _ = stream_pieces(ByteTokenizer(), list(text.encode()))
    expected = [piece for char in text for piece in [*[""] * (len(char.encode()) - 1), char]]
    check_equal(pieces, [*expected, ""], "pieces after each token and at the end")


def test_task_3_generation_hands_on_its_pieces() -> None:
    pieces: list[str] = []
    tokenizer, choices = ByteTokenizer(), iter([*"né🦙!".encode(), EOS])
    text = simple_generate(
        FakeModel(), tokenizer, "a", lambda _: mx.array([next(choices)]), max_tokens=20, on_text=pieces.append
    )
    check_equal(text, "né🦙!", "text")
    check_equal(pieces, ["n", "é", "🦙", "!"], "pieces")
