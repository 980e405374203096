"""Week 3, day 8: structured output."""

import re
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from tests.support.batching import peak_bytes
from tests.support.budget import answers_of, run
from tests.support.check import check_close, check_equal, check_value_error, normal
from tests.support.engines import drafting_engine
from tests.support.fakes import EOS, VOCAB_SIZE, FakeModel, FakeTokenizer, continuation, prompt_of
from tiny_llm import (
    BlockManager,
    Constraint,
    DraftModel,
    Engine,
    EngineStep,
    GrammarDrafter,
    SamplingParams,
    ScheduledTokens,
    SchedulerConfig,
    SchedulerOutput,
    Sequence,
    StructuredOutputsParams,
)
from tiny_llm.kernels.mask_rows import mask_rows
from tiny_llm.speculation.drafter import Drafts, extended
from tiny_llm.structured import masks
from tiny_llm.structured.grammars import compile_grammar
from tiny_llm.structured.masks import MaskedRow, fill_masks, mask_rows_simple, masked_rows
from tiny_llm.structured.step_masks import constrain

# Token 1 is "A", 2 is "B" and so on; 0 ends the text.
A, B, C, D, E = range(1, 6)
SPELLED = ["", *"ABCDE", "AB", "BC", "ABC", *"FGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"][:VOCAB_SIZE]
AB, BC, ABC = 6, 7, 8
letters = FakeTokenizer()
pieces = FakeTokenizer([*SPELLED, *(f"<{i}>" for i in range(len(SPELLED), VOCAB_SIZE))])
WORDS = -(-VOCAB_SIZE // 32)


def constraint_of(regex: str, tokenizer: FakeTokenizer = letters) -> Constraint:
    """A constraint at the start of a regular expression."""
    return compile_grammar(StructuredOutputsParams(regex=regex), tokenizer)


def allowed_now(constraint: Constraint) -> list[int]:
    """What may come next, as the matcher itself says it."""
    mask = int.from_bytes(constraint.matcher.compute_bitmask(), "little")
    return [token for token in range(VOCAB_SIZE) if mask >> token & 1]


def spelled(tokens: Items[int]) -> str:
    """Tokens as the letters of the grammar and as the numbers of the comparison."""
    return f"{' '.join('end' if token == EOS else letters.decode([token]) for token in tokens)} {tokens}"


def tokens_of(bits: np.ndarray) -> list[list[int]]:
    """The tokens whose bits are 1, for each row."""
    return [[token for token in range(VOCAB_SIZE) if row[token // 32] >> token % 32 & 1] for row in bits]


# Task 1: a place in the grammar


def test_task_1_a_constraint_reads_the_answer() -> None:
    constraint = constraint_of("ABC|AD")
    constraint.advance([A])
    check_equal(allowed_now(constraint), [B, D], "tokens that may follow A in ABC|AD")
    constraint.advance([B, C])
    check_equal(allowed_now(constraint), [EOS], "tokens that may follow A B C")
    check_equal(constraint.num_tokens, 3, "num_tokens")
    constraint.advance([])
    check_equal(constraint.num_tokens, 3, "num_tokens after no further token")


def test_task_1_a_constraint_goes_back() -> None:
    constraint = constraint_of("A(B|C)*D")
    constraint.advance([A, B, B])
    constraint.rollback(2)
    check_equal(constraint.num_tokens, 1, "num_tokens after A B B and rollback(2)", {"not changed": 3})
    constraint.advance([C, D])
    check_equal(allowed_now(constraint), [EOS], "tokens that may follow A C D")
    constraint.rollback(0)
    constraint.rollback(3)
    check_equal(
        (constraint.num_tokens, allowed_now(constraint)), (0, [A]), "num_tokens and tokens at the start"
    )


@pytest.mark.parametrize("tokens", [[D], [A, C], [A, B, B, A], [A, B, D, A]])
def test_task_1_a_forbidden_token_changes_nothing(tokens: list[int]) -> None:
    constraint = constraint_of("AB*D")
    place = next(
        i for i in range(len(tokens)) if not re.match("^(A(B*(D)?)?)?$", letters.decode(tokens[: i + 1]))
    )
    with check_value_error(token=tokens[place], place=place, what=f"tokens {spelled(tokens)} in AB*D"):
        constraint.advance(tokens)
    check_equal(constraint.matcher.is_error(), False, "whether the matcher is in its error state, for good")
    mistakes = {"the allowed tokens before it stay read": place}
    check_equal(constraint.num_tokens, 0, "num_tokens afterwards", {n: m for n, m in mistakes.items() if m})
    check_equal(allowed_now(constraint), [A], "tokens that may come, afterwards")


def test_task_1_a_place_is_counted_from_the_start_of_the_answer() -> None:
    constraint = constraint_of("AB*D")
    constraint.advance([A, B, B])
    with check_value_error(token=C, place=4, what="tokens B C after A B B in AB*D"):
        constraint.advance([B, C])


@pytest.mark.parametrize("regex", ["AB", "AB*"])
def test_task_1_end_of_text_is_not_read(regex: str) -> None:
    # The matcher would count it in the second grammar, and not in the first.
    constraint = constraint_of(regex)
    constraint.advance([A, B])
    with check_value_error(token=EOS, what=f"the end-of-text id after A B in {regex}"):
        constraint.advance([EOS])
    constraint.rollback(1)
    check_equal(
        (constraint.num_tokens, B in allowed_now(constraint)), (1, True), "num_tokens, and whether B may come"
    )


@pytest.mark.parametrize("number", [-1, 3])
def test_task_1_it_goes_back_no_further_than_it_came(number: int) -> None:
    constraint = constraint_of("A*")
    constraint.advance([A, A])
    with check_value_error(num_tokens=number):
        constraint.rollback(number)
    check_equal((constraint.num_tokens, constraint.matcher.is_error()), (2, False), "num_tokens and is_error")


@pytest.mark.parametrize(
    ("drafts", "expected"),
    [
        ([B, C, D], [B, C, D]),
        ([B, D, C], [B, D]),
        ([A], []),
        ([], []),
        ([B, EOS, C], [B]),
        ([EOS], []),
        ([B, C, D, D], [B, C, D]),
    ],
)
def test_task_1_drafts_are_allowed_up_to_the_first_forbidden_one(
    drafts: list[int], expected: list[int]
) -> None:
    constraint = constraint_of("A(BC*)*D?")
    constraint.advance([A])
    found = constraint.allowed_prefix(drafts)
    mistakes = {
        "all of them": drafts,
        "one too many: the end-of-text id, or the first forbidden draft": drafts[: len(expected) + 1],
        "each draft is judged alone": [token for token in drafts if token in (B, D)],
    }
    mistakes = {name: wrong for name, wrong in mistakes.items() if wrong != expected}
    check_equal(found, expected, f"drafts of {spelled(drafts)} that A(BC*)*D? allows after A", mistakes)
    check_equal(constraint.num_tokens, 1, "num_tokens afterwards")
    check_equal(allowed_now(constraint), [EOS, B, D], "tokens that may come, afterwards")


UNKNOWN = [VOCAB_SIZE, VOCAB_SIZE + 40]
STUCK = {"the matcher was asked about an id that it doesn't know, so it is in its error state": [EOS]}


@pytest.mark.parametrize("unknown", UNKNOWN)
def test_task_1_unknown_ids_never_reach_the_matcher(unknown: int) -> None:
    # A model may have more ids than its tokenizer, a prompt may contain them, and lookup proposes them.
    constraint = constraint_of("(AB)*")
    what = f"drafts A {unknown} B that (AB)* allows; the matcher knows {VOCAB_SIZE} tokens"
    mistakes: dict[str, list[int]] = {"the matcher was asked, and allows none of them": []}
    check_equal(constraint.allowed_prefix([A, unknown, B]), [A], what, mistakes)
    check_equal(allowed_now(constraint), [EOS, A], "tokens that may come, afterwards", STUCK)
    with check_value_error(token=unknown, place=1):
        constraint.advance([A, unknown])
    check_equal(allowed_now(constraint), [EOS, A], "tokens that may come, afterwards", STUCK)


@pytest.mark.parametrize("drafts", [[D, A, B], [D, EOS, A], [UNKNOWN[0], A], [EOS, EOS], []])
def test_task_1_drafts_are_readable_up_to_an_end_of_text_or_an_unknown_id(drafts: list[int]) -> None:
    constraint = constraint_of("AB")
    expected = [*drafts, EOS][: next(i for i, id in enumerate([*drafts, EOS]) if id in (EOS, *UNKNOWN))]
    mistakes = {"forbidden ones are left out too": constraint.allowed_prefix(drafts), "all of them": drafts}
    mistakes = {name: wrong for name, wrong in mistakes.items() if wrong != expected}
    check_equal(constraint.readable_prefix(drafts), expected, f"readable drafts of {drafts} in AB", mistakes)


def test_task_1_two_constraints_share_nothing() -> None:
    first, second = constraint_of("A|B"), constraint_of("A|B")
    first.advance([A])
    check_equal(
        (second.num_tokens, allowed_now(second)), (0, [A, B]), "num_tokens and tokens of another request"
    )


# Task 2: whose rows


def sequence_of(answer: Items[int], id: int = 0, prompt: Items[int] = (7, 8, 9)) -> Sequence:
    sequence = Sequence(id, prompt, max_num_tokens=40)
    sequence.token_ids += answer
    return sequence


def test_task_2_only_requests_with_grammars_have_masks() -> None:
    second, fourth = constraint_of("A*"), constraint_of("B*")
    fourth.advance([B, B])
    sequences = [sequence_of([5]), sequence_of([], 1), sequence_of([4, 4], 2), sequence_of([B, B], 3)]
    found = masked_rows(sequences, [None, second, None, fourth])
    mistakes = {
        "rows are counted among those with grammars": [(0, 1, ()), (1, 3, ())],
        "tokens that the constraint has read count as drafts": [(1, 1, ()), (3, 3, (B, B))],
        "all tokens of the sequence, the prompt's too": [(1, 1, (7, 8, 9)), (3, 3, (7, 8, 9, B, B))],
    }
    seen = [(row.row, {second: 1, fourth: 3}[row.constraint], row.draft_ids) for row in found]
    check_equal(seen, [(1, 1, ()), (3, 3, ())], "row, request and drafts of each masked row", mistakes)


def test_task_2_without_grammars_there_are_none() -> None:
    check_equal(masked_rows([sequence_of([5]), sequence_of([], 1)], [None, None]), [], "masked rows")
    check_equal(masked_rows([], []), [], "masked rows of no rows")


def test_task_2_unread_tokens_are_drafts() -> None:
    constraint = constraint_of("[ABC]*")
    constraint.advance([A, B])
    sequence = sequence_of([A, B])
    sequences = [sequence, extended(sequence, [C]), extended(sequence, [C, A])]
    found = [(row.row, row.draft_ids) for row in masked_rows(sequences, [constraint] * 3)]
    mistakes = {
        "the whole answer": [(0, (A, B)), (1, (A, B, C)), (2, (A, B, C, A))],
        "counted from the start of the prompt": [(0, (9, A, B)), (1, (9, A, B, C)), (2, (9, A, B, C, A))],
        "no drafts": [(0, ()), (1, ()), (2, ())],
    }
    check_equal(found, [(0, ()), (1, (C,)), (2, (C, A))], "row and drafts of each masked row", mistakes)


def test_task_2_drafts_end_before_an_unreadable_one() -> None:
    constraint, sequence = constraint_of("A*"), sequence_of([])
    drafts = [[A], [A, EOS], [A, EOS, A], [EOS, EOS], [A, UNKNOWN[0], A]]
    sequences = [extended(sequence, each) for each in drafts]
    found = [row.draft_ids for row in masked_rows(sequences, [constraint] * len(drafts))]
    mistakes = {
        "nothing is left out": [tuple(each) for each in drafts],
        "the end-of-text id stays": [(A,), (A, EOS), (A, EOS), (EOS,), (A,)],
        "only end-of-text ids end the drafts": [(A,), (A,), (A,), (), (A, UNKNOWN[0], A)],
        "rows after it are left out": [(A,)],
    }
    check_equal(found, [(A,), (A,), (A,), (), (A,)], f"drafts of the rows after {drafts}", mistakes)


# Task 3: all masks in one call


def not_filled(number: int) -> dict[str, list[list[int]]]:
    """Masks that the library did not fill, by what they were before."""
    cause = "the library filled another array: view shares memory, astype copies"
    before: dict[str, list[int]] = {"zeros": [], "ones": [*range(VOCAB_SIZE)]}
    return {f"still {name}, since {cause}": [mask] * number for name, mask in before.items()}


class CountingExecutor:
    """Hands on what it is asked, and counts how often."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self._executor = masks.executor()

    def unsafe_compute_mask_ptr(self, matchers: list[Any], *rest: int) -> None:
        self.calls.append(len(matchers))
        self._executor.unsafe_compute_mask_ptr(matchers, *rest)

    def unsafe_compute_mask_ptr_with_draft_token(self, matchers: list[Any], *rest: int) -> None:
        self.calls.append(len(matchers))
        self._executor.unsafe_compute_mask_ptr_with_draft_token(matchers, *rest)


def test_task_3_a_mask_for_each_row() -> None:
    constraints = [constraint_of(regex) for regex in ("A|B", "AC", "[a-z]+", "D*")]
    constraints[1].advance([A])
    found = fill_masks([MaskedRow(2 * row, each) for row, each in enumerate(constraints)])
    check_equal(found.shape, (4, WORDS), "shape of the masks")
    check_equal(found.dtype, np.dtype(np.uint32), "type of the masks")
    lower = list(range(letters.encode("a")[0], VOCAB_SIZE - 2))
    expected = [[A, B], [C], lower, [EOS, D]]
    check_equal(tokens_of(found), expected, "tokens that each mask allows", not_filled(4))
    check_equal([each.num_tokens for each in constraints], [0, 1, 0, 0], "num_tokens afterwards")


def test_task_3_the_calls_do_not_grow_with_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = CountingExecutor()
    monkeypatch.setattr(masks, "executor", lambda: executor)
    plain = [MaskedRow(row, constraint_of("A*")) for row in range(5)]
    drafted = [constraint_of("[AB]*") for _ in range(3)]
    rows = [MaskedRow(0, each, drafts) for each in drafted for drafts in ((), (A,), (A, B))]
    fill_masks([*plain, *rows])
    check_equal(sorted(executor.calls), [3, 5], "constraints in each call", {"a call for each": [1] * 8})


def test_task_3_drafts_are_read_and_forgotten() -> None:
    constraint = constraint_of("A(B|CD)E")
    constraint.advance([A])
    found = fill_masks([MaskedRow(row, constraint, drafts) for row, drafts in enumerate([(), (C,), (C, D)])])
    mistakes = {"the same mask for all rows": [[B, C]] * 3, "in reverse": [[E], [D], [B, C]]} | not_filled(3)
    check_equal(tokens_of(found), [[B, C], [D], [E]], "tokens after A, A C and A C D in A(B|CD)E", mistakes)
    check_equal(
        (constraint.num_tokens, allowed_now(constraint)), (1, [B, C]), "num_tokens and tokens, afterwards"
    )


def test_task_3_rows_are_in_the_order_they_came_in() -> None:
    first, second, third = (constraint_of(regex) for regex in ("AB*", "C", "D[EF]"))
    rows = [
        MaskedRow(0, first),
        MaskedRow(1, first, (A,)),
        MaskedRow(3, second),
        MaskedRow(4, third),
        MaskedRow(5, third, (D,)),
    ]
    F = letters.encode("F")[0]
    expected = [[A], [EOS, B], [C], [D], [E, F]]
    check_equal(tokens_of(fill_masks(rows)), expected, "tokens that each mask allows", not_filled(5))


def test_task_3_a_row_may_stand_alone_behind_its_drafts() -> None:
    # A draft model asks for the last row only, and drafts behind an end-of-text id are left out.
    constraint, other = constraint_of("AB*C"), constraint_of("D")
    rows = [MaskedRow(0, constraint, (A, B)), MaskedRow(1, constraint, (A, B)), MaskedRow(2, other)]
    mistakes = {"the first masks of the array, not the one of each row": [[A], [B, C], [B, C]]}
    found = tokens_of(fill_masks(rows))
    check_equal(found, [[B, C], [B, C], [D]], "tokens that each mask allows", mistakes | not_filled(3))


def test_task_3_a_finished_answer_may_only_end() -> None:
    constraint = constraint_of("AB")
    constraint.advance([A])
    found = tokens_of(fill_masks([MaskedRow(0, constraint), MaskedRow(1, constraint, (B,))]))
    check_equal(found, [[B], [EOS]], "tokens after A and A B in AB")


# Task 4: minus infinity


def masks_of(allowed: Items[Items[int]], V: int) -> mx.array:
    bits = np.zeros((len(allowed), -(-V // 32)), np.uint32)
    for row, tokens in enumerate(allowed):
        for token in tokens:
            bits[row, token // 32] |= np.uint32(1 << token % 32)
    return mx.array(bits)


def expected_masked(logits: mx.array, rows: Items[int], allowed: Items[Items[int]]) -> np.ndarray:
    expected = np.array(logits.astype(mx.float32))
    for row, tokens in zip(rows, allowed, strict=True):
        kept = expected[row, list(tokens)]
        expected[row] = -np.inf
        expected[row, list(tokens)] = kept
    return expected


def misread_masks(
    logits: mx.array, rows: Items[int], allowed: Items[Items[int]]
) -> dict[str, Callable[[], np.ndarray]]:
    """What the known ways to misread masks give."""
    V = logits.shape[-1]
    bits = np.zeros((len(allowed), -(-V // 32), 32), bool)
    for row, tokens in zip(bits, allowed, strict=True):
        row.reshape(-1)[list(tokens)] = True

    def masked(changed: np.ndarray, rows: Items[int] = rows) -> np.ndarray:
        flat = changed.reshape(len(rows), -1)[:, :V]
        return expected_masked(logits, rows, [np.flatnonzero(row).tolist() for row in flat])

    return {
        "the result with the first token of a word as its highest bit": lambda: masked(bits[..., ::-1]),
        "the result with bits and words swapped before the reshape": lambda: masked(bits.swapaxes(1, 2)),
        "the result with a bit of 1 for each forbidden token": lambda: masked(~bits),
        "the result of mask i in row i": lambda: masked(bits, range(len(rows))),
    }


def check_masks(apply: Any, B: int, V: int, rows: list[int], dtype: mx.Dtype = mx.float32) -> None:
    logits, random = normal(B, V, seed=V, dtype=dtype), np.random.default_rng(V)
    allowed = [
        sorted(random.choice(V, size=1 + int(random.integers(V)), replace=False).tolist()) for _ in rows
    ]
    before = np.array(logits.astype(mx.float32))
    found = apply(logits, mx.array(rows, mx.int32), masks_of(allowed, V))
    check_equal(found.shape, (B, V), "shape of the result")
    what = f"masked logits of rows {rows}, [{B}, {V}] in {str(dtype).removeprefix('mlx.core.')}"
    mistakes = misread_masks(logits, rows, allowed)
    check_close(found.astype(mx.float32), expected_masked(logits, rows, allowed), what, mistakes=mistakes)
    check_equal(
        np.array_equal(np.array(logits.astype(mx.float32)), before), True, "whether the argument is as before"
    )


SIZES = pytest.mark.parametrize(
    ("B", "V", "rows"),
    [(1, 32, [0]), (4, 61, [1, 3]), (3, 96, [2, 0]), (5, 4099, [0, 1, 2, 3, 4]), (8, 50_021, [6, 2, 5])],
)


@SIZES
def test_task_4_forbidden_tokens_are_impossible(B: int, V: int, rows: list[int]) -> None:
    check_masks(mask_rows_simple, B, V, rows)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=["float16", "bfloat16"])
def test_task_4_the_type_stays(dtype: mx.Dtype) -> None:
    check_masks(mask_rows_simple, 4, 131, [2, 1], dtype)
    found = mask_rows_simple(normal(2, 40, seed=1, dtype=dtype), mx.array([1]), masks_of([[3]], 40))
    check_equal(found.dtype, dtype, "type of the result")


def test_task_4_logits_that_are_infinite_already() -> None:
    logits = mx.array([[1.0, -mx.inf, mx.inf, 2.0]])
    found = mask_rows_simple(logits, mx.array([0]), masks_of([[1, 3]], 4))
    check_equal(found.tolist(), [[-np.inf, -np.inf, -np.inf, 2.0]], "masked logits, 1 and 3 allowed")


def test_task_4_other_rows_are_the_same_bits() -> None:
    logits = normal(6, 333, seed=5) * 1e30
    found = mask_rows_simple(logits, mx.array([4]), masks_of([[7]], 333))
    others = [0, 1, 2, 3, 5]
    same = np.array(found)[others].tobytes() == np.array(logits)[others].tobytes()
    check_equal(same, True, "whether rows without a grammar are as before")


def test_task_4_rows_without_a_grammar_cost_no_memory() -> None:
    logits = normal(64, 32_768, seed=6, dtype=mx.float16)
    rows, bits = mx.array([40]), masks_of([[7]], 32_768)
    mx.eval(logits, rows, bits)
    peak = peak_bytes(lambda: mx.eval(mask_rows_simple(logits, rows, bits)))
    assert peak < 2.2 * logits.nbytes, (
        f"masking 1 of 64 rows took {peak >> 20} MiB, beside logits of {logits.nbytes >> 20} MiB: "
        "expand the masks of the given rows only"
    )


# Requests with grammars, in an engine

CONFIG = SchedulerConfig(16, 4)


def params_of(regex: str | None, max_tokens: int = 12, **options: Any) -> SamplingParams:
    outputs = None if regex is None else StructuredOutputsParams(regex=regex)
    return SamplingParams(max_tokens=max_tokens, structured_outputs=outputs, **options)


def served(
    requests: Items[SamplingParams],
    kind: type[Engine] = Engine,
    blocks: BlockManager | None = None,
    tokenizer: FakeTokenizer = letters,
    **options: Any,
) -> tuple[dict[int, list[int]], list[EngineStep]]:
    pool = BlockManager(60, 4) if blocks is None else blocks
    with kind(FakeModel(), tokenizer, CONFIG, 64, pool, **options) as engine:
        for id, params in enumerate(requests):
            engine.add_request(prompt_of(5 + id, id), params)
        steps = run(engine)
    return answers_of(steps), steps


def test_task_4_answers_keep_to_their_grammars() -> None:
    regexes = ["(AB|C)*D", None, "[a-e]{3,7}", None]
    answers, steps = served([params_of(regex) for regex in regexes])
    finished = {result.prompt_idx: result for step in steps for result in step.finished}
    for id, regex in enumerate(regexes):
        if regex is None:
            expected = continuation(prompt_of(5 + id, id), 12)
            check_equal(
                answers[id], expected, "tokens of a request without a grammar, beside others with one"
            )
        elif finished[id].finish_reason == "stop":
            what = f"whether {finished[id].text!r} matches {regex}"
            check_equal(bool(re.fullmatch(regex, finished[id].text)), True, what)
    check_equal(finished[2].finish_reason, "stop", "why the answer ended that has at most 7 tokens")


def test_task_4_each_request_gets_what_it_gets_alone() -> None:
    requests = [
        params_of("[A-Z]+"),
        params_of("(aB?c*)+", temperature=1.0, seed=3),
        params_of("x|yz+"),
        params_of(None),
    ]
    together, _ = served(requests)
    for id, params in enumerate(requests):
        alone, _ = served([*[params_of(None, 1)] * id, params])
        check_equal(together[id], alone[id], f"tokens of request {id} beside others, and without them")


def test_task_4_preemption_keeps_the_constraint_in_step() -> None:
    requests = [params_of("([a-f]{2}Z)+"), params_of("[A-Z]{12}"), params_of(None)]
    roomy, _ = served(requests)
    tight, steps = served(requests, blocks=BlockManager(9, 4, overcommit=True))
    check_equal(
        any(len(step.scheduled.entries) < 3 for step in steps[3:-3]),
        True,
        "whether some request was preempted",
    )
    check_equal(tight, roomy, "tokens when requests are preempted, and when they are not")


def test_task_4_an_answer_cut_off_ends_with_length() -> None:
    answers, steps = served([params_of("[A-Z]{30}", 4)])
    (result,) = (result for step in steps for result in step.finished)
    check_equal((len(answers[0]), result.finish_reason), (4, "length"), "tokens, and why the answer ended")


# Task 5: word by word in C++


@pytest.mark.usefixtures("on_cpu")
@SIZES
def test_task_5_the_kernel_masks_the_same(B: int, V: int, rows: list[int]) -> None:
    check_masks(mask_rows, B, V, rows)


@pytest.mark.usefixtures("on_cpu")
def test_task_5_all_and_nothing() -> None:
    logits = normal(4, 70, seed=2)
    found = mask_rows(logits, mx.array([3, 1]), masks_of([range(70), []], 70))
    check_close(
        found, expected_masked(logits, [3, 1], [range(70), []]), "row 3 all allowed, row 1 all forbidden"
    )


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("V", [33, 63, 65])
def test_task_5_the_last_word_ends_with_the_row(V: int) -> None:
    logits = normal(3, V, seed=V)
    found = mask_rows(logits, mx.array([0]), masks_of([[]], V))
    check_close(
        found, expected_masked(logits, [0], [[]]), f"a row of {V} all forbidden, and the rows after it"
    )


@pytest.mark.usefixtures("on_cpu")
def test_task_5_half_precision_is_widened() -> None:
    logits = normal(2, 40, seed=3, dtype=mx.bfloat16)
    found = mask_rows(logits, mx.array([1]), masks_of([[5, 39]], 40))
    check_close(found, expected_masked(logits, [1], [[5, 39]]), "masked logits of bfloat16")


# Task 6: drafts that keep to the grammar


class Fixed:
    """A drafter that proposes what it was told to, and records what it is asked and what it returns."""

    def __init__(self, drafts: Mapping[int, Items[int]], probs: Mapping[int, mx.array] | None = None) -> None:
        self.drafts = drafts
        self.probs = probs or {}
        self.asked: list[list[int]] = []
        self.granted: list[dict[int, int]] = []
        self.returned: list[dict[int, Any]] = []

    def rests(self, sequences: Items[Sequence]) -> bool:
        return False

    def wanted(self, entries: Items[ScheduledTokens]) -> dict[int, int]:
        self.asked.append([entry.sequence.id for entry in entries])
        self.returned.append({id: len(tokens) for id, tokens in self.drafts.items()})
        return self.returned[-1]

    def propose(self, output: Any, granted: Mapping[int, int], params: Any) -> Drafts:
        self.granted.append(dict(granted))
        self.returned.append({id: list(self.drafts[id][:number]) for id, number in granted.items()})
        return Drafts(self.returned[-1], self.probs)

    def release(self, sequence_id: int) -> None: ...

    def close(self) -> None: ...


def step_of(constraints: Items[Constraint | None]) -> SchedulerOutput:
    """A step of decodes, with a grammar each or none."""
    entries = []
    for id, constraint in enumerate(constraints):
        sequence = sequence_of([4] * (0 if constraint is None else constraint.num_tokens), id)
        if constraint is not None:
            constrain(sequence, constraint)
        entries.append(ScheduledTokens(sequence, sequence.num_tokens - 1, 1, True))
    return SchedulerOutput(tuple(entries))


def proposed(drafter: GrammarDrafter, step: SchedulerOutput, limit: int = 99) -> Drafts:
    """The drafts of a step, each sequence granted what it wants up to a limit."""
    granted = {id: min(number, limit) for id, number in drafter.wanted(step.final).items() if number}
    return drafter.propose(step, granted, {})


def test_task_6_forced_tokens() -> None:
    constraint = constraint_of("ABC(D|E)AB")
    check_equal(constraint.forced_tokens(), [A, B, C], "forced tokens at the start of ABC(D|E)AB")
    constraint.advance([A, B, C])
    check_equal(constraint.forced_tokens(), [], "forced tokens where D or E may come")
    constraint.advance([E])
    check_equal(
        (constraint.forced_tokens(), constraint.num_tokens),
        ([A, B], 4),
        "forced tokens after E, and num_tokens",
    )


def test_task_6_where_tokens_are_forced_only_the_first_is_allowed() -> None:
    constraint = constraint_of("ABCD", pieces)
    check_equal(constraint.forced_tokens(), [ABC, D], "forced tokens of ABCD, with tokens AB, BC and ABC")
    check_equal(tokens_of(fill_masks([MaskedRow(0, constraint)])), [[ABC]], "tokens that the mask allows")


def test_task_6_forced_tokens_come_before_other_drafts() -> None:
    other = Fixed({0: [A, B], 1: [D, D], 2: [A, E]})
    step = step_of([constraint_of("ABCD"), None, constraint_of("[AE]*")])
    drafter = GrammarDrafter(other)
    check_equal(drafter.wanted(step.final), {0: 4, 1: 2, 2: 2}, "drafts wanted; 0 is forced to write A B C D")
    check_equal(other.asked, [[0, 1, 2]], "sequences that the other drafter was asked about")
    drafts = drafter.propose(step, {0: 3, 1: 2, 2: 1}, {})
    expected = {0: [A, B, C], 1: [D, D], 2: [A]}
    mistakes = {"forced tokens beyond what is granted": expected | {0: [A, B, C, D]}}
    check_equal(dict(drafts.token_ids), expected, "drafts", mistakes)
    check_equal(
        other.granted,
        [{1: 2, 2: 1}],
        "what the other drafter is granted",
        {"forced ones too": [{0: 3, 1: 2, 2: 1}]},
    )
    own = [{0: 2, 1: 2, 2: 2}, {1: [D, D], 2: [A]}]
    check_equal(other.returned, own, "what the other drafter has returned, afterwards: copy it, then change")


def test_task_6_forced_tokens_are_those_of_this_step() -> None:
    constraint = constraint_of("AB(C|D)*")
    drafter = GrammarDrafter(Fixed({0: [C, D, C]}))
    check_equal(drafter.wanted(step_of([constraint]).final), {0: 2}, "drafts wanted; A B is forced")
    constraint.advance([A, B])
    step = step_of([constraint])
    mistakes: dict[str, Any] = {"A B is still in `forced`, from the step before": {0: 2}}
    check_equal(drafter.wanted(step.final), {0: 3}, "drafts wanted after A B; nothing is forced", mistakes)
    check_equal(drafter.forced, {}, "forced")
    check_equal(dict(drafter.propose(step, {0: 3}, {}).token_ids), {0: [C, D, C]}, "drafts after A B")


def test_task_6_the_other_drafter_is_called_in_every_step() -> None:
    # A draft model computes the new tokens of all sequences when it is called.
    other = Fixed({0: [A]})
    step = step_of([constraint_of("ABC")])
    check_equal(dict(proposed(GrammarDrafter(other), step).token_ids), {0: [A, B, C]}, "drafts, all forced")
    mistakes = {"not called, since nothing is left for it": []}
    check_equal(other.granted, [{}], "what each call grants the other drafter", mistakes)


def test_task_6_tokens_that_were_forced_before_are_drafts_no_more() -> None:
    constraint = constraint_of("AB[CD]E")
    other = Fixed({0: [D], 1: [A]})
    drafter = GrammarDrafter(other)
    step = step_of([constraint, None])
    check_equal(drafter.wanted(step.final), {0: 2, 1: 1}, "drafts wanted, where AB[CD]E forces A B")
    constraint.advance([A, B])
    step = step_of([constraint, None])
    mistakes = {"what was forced before": {0: 2, 1: 1}}
    check_equal(drafter.wanted(step.final), {0: 1, 1: 1}, "drafts wanted after A B", mistakes)
    mistakes_of_drafts = {"what was forced before": {0: [A, B], 1: [A]}}
    found = dict(drafter.propose(step, {0: 2, 1: 1}, {}).token_ids)
    check_equal(found, {0: [D, E], 1: [A]}, "drafts after A B, of which 2 are granted", mistakes_of_drafts)


def test_task_6_what_is_not_granted_is_not_proposed() -> None:
    drafter = GrammarDrafter(Fixed({0: [A], 1: [D]}))
    step = step_of([constraint_of("ABC"), None])
    drafter.wanted(step.final)
    check_equal(
        dict(drafter.propose(step, {1: 1}, {}).token_ids), {1: [D]}, "drafts if only 1 is granted any"
    )


def test_task_6_drafts_stop_where_the_grammar_forbids_them() -> None:
    constraint = constraint_of("[AB]*(C[DE])?")
    step = step_of([constraint, None])
    drafts = proposed(GrammarDrafter(Fixed({0: [A, B, D, A], 1: [A, B, D, A]})), step)
    mistakes = {
        "forbidden drafts stay": {0: [A, B, D, A], 1: [A, B, D, A]},
        "a request without a grammar is cut as well": {0: [A, B], 1: [A, B]},
        "each draft is judged alone": {0: [A, B, A], 1: [A, B, D, A]},
    }
    check_equal(
        dict(drafts.token_ids), {0: [A, B], 1: [A, B, D, A]}, "drafts of A B D A in [AB]*(C[DE])?", mistakes
    )
    check_equal(
        (constraint.num_tokens, allowed_now(constraint)),
        (0, [EOS, A, B, C]),
        "num_tokens and tokens, afterwards",
    )


def test_task_6_forced_tokens_take_the_place_of_forbidden_drafts() -> None:
    constraint = constraint_of("(A|B)CDE[AB]")
    drafter = GrammarDrafter(Fixed({0: [B, B, B]}))
    step = step_of([constraint])
    mistakes = {"nothing takes their place": {0: [B]}, "more than is granted": {0: [B, C, D, E]}}
    check_equal(
        dict(proposed(drafter, step).token_ids), {0: [B, C, D]}, "drafts of B B B in (A|B)CDE[AB]", mistakes
    )
    check_equal(constraint.num_tokens, 0, "num_tokens afterwards", {"not rolled back": 1})
    check_equal(dict(proposed(drafter, step, 1).token_ids), {0: [B]}, "drafts if one is granted")


def test_task_6_drafts_drawn_at_random_are_not_cut() -> None:
    probs = mx.softmax(normal(3, VOCAB_SIZE, seed=1), axis=-1)
    drafter = GrammarDrafter(Fixed({0: [A, D, A]}, {0: probs}))
    drafts = proposed(drafter, step_of([constraint_of("[AB]*")]))
    mistakes = {"cut: what is then sampled instead is not distributed like max(p - q, 0)": {0: [A]}}
    check_equal(dict(drafts.token_ids), {0: [A, D, A]}, "drafts with probabilities", mistakes)
    check_equal(sorted(drafts.probs), [0], "sequences with probabilities", {"they are lost": []})
    check_equal(drafts.probs[0].shape, (3, VOCAB_SIZE), "shape of their probabilities")


def test_task_6_a_grammar_saves_steps() -> None:
    requests = [params_of("(ABCDEABCDE|EDCBAEDCBA)"), params_of(None)]
    plain, _ = served(requests)
    drafted, fewer = served(requests, drafting_engine)
    check_equal(drafted, plain, "tokens with drafts, and without")
    new = [1 + len(step.accepted.get(0, ())) for step in fewer if 0 in step.sampled]
    mistakes = {"forced tokens are not drafted": [1] * 11}
    check_equal(
        new, [1, 10], "new tokens of each step; after the first, nine are forced, and then the end", mistakes
    )


class SmallTokenizer(FakeTokenizer):
    """A tokenizer with fewer ids than the model."""

    @property
    def token_bytes(self) -> list[bytes]:
        return super().token_bytes[:50]


def test_task_6_a_prompt_may_contain_ids_that_the_matcher_does_not_know() -> None:
    answers = []
    for kind in (Engine, drafting_engine):
        with kind(FakeModel(), SmallTokenizer(), CONFIG, 64, BlockManager(60, 4)) as engine:
            engine.add_request([A, B, 55] * 3, params_of("[AB]{8}", temperature=1.0, seed=0))
            answers.append(answers_of(run(engine))[0])
    what = "tokens with drafts from a prompt that repeats A B 55, and without; the matcher knows 50 tokens"
    check_equal(answers[1], answers[0], what, {"its matcher gave up, and the answer ended": []})


@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_task_6_drafts_change_no_token(temperature: float) -> None:
    options: dict[str, Any] = {"temperature": temperature, "seed": 5} if temperature else {}
    regexes = ["(AB|BA)*C", "[a-e]{2}(Z|Y)[A-C]+", None, "(xyz|xzy)+"]
    requests = [params_of(regex, 14, **options) for regex in regexes]
    plain, _ = served(requests, tokenizer=letters)
    drafted, _ = served(requests, drafting_engine, BlockManager(16, 4, overcommit=True))
    check_equal(drafted, plain, "tokens with drafts, and without")


def test_task_6_a_draft_model_drafts_under_the_same_grammar() -> None:
    requests = [params_of("[A-E]{4}(XYZ|ZYX)[A-E]{4}", 11), params_of(None, 11)]
    plain, _ = served(requests)
    pool = BlockManager(40, 4)
    drafted, steps = served(requests, drafting_engine, pool, drafter=DraftModel(FakeModel(), pool, 3))  # type: ignore[arg-type]
    check_equal(drafted, plain, "tokens with a draft model, and without")
    rows = [entry for step in steps for entry in step.scheduled.entries if entry.sequence.id == 0]
    num_drafts = sum(len(entry.draft_ids) for entry in rows)
    num_accepted = sum(len(step.accepted.get(0, ())) for step in steps)
    check_equal(
        num_accepted >= num_drafts - 3,
        True,
        f"whether nearly all of {num_drafts} drafts of the same model are accepted",
    )
