"""What a draft model has stored: after rests, rejected drafts and preemptions, and in shared blocks."""

from collections.abc import Callable
from collections.abc import Sequence as Items
from types import SimpleNamespace

import pytest

from tests.support.engines import drafting_engine
from tests.support.fakes import VOCAB_SIZE, FakeModel, FakeTokenizer, prompt_of
from tests.support.schedules import IdTokenizer, random_qwen3
from tests.support.speculation import SHORT, TwinEngine, short_qwen3
from tiny_llm import (
    BlockManager,
    DraftModel,
    EngineStep,
    PrefixCachingBlockManager,
    Qwen3Model,
    SamplingParams,
    ScheduledTokens,
    SchedulerConfig,
    Sequence,
    with_drafts,
)
from tiny_llm.speculation.draft_blocks import DraftBlocks
from tiny_llm.speculation.drafter import extended

pytestmark = pytest.mark.usefixtures("on_cpu")
SIZE = 4


class Endless(IdTokenizer):
    """Ends no answer."""

    eos_token_ids: set[int] = set()


class Scripted(DraftModel):
    """A draft model that rests in some steps."""

    def __init__(self, model: Qwen3Model, blocks: BlockManager, resting: range) -> None:
        super().__init__(model, blocks, 3)
        self.resting, self.num_steps = resting, 0

    def rests(self, sequences: Items[Sequence]) -> bool:
        self.num_steps += 1
        return self.num_steps - 1 in self.resting


def entry(sequence: Sequence, start: int, end: int) -> ScheduledTokens:
    return ScheduledTokens(sequence, start, end - start, True)


def admitted(blocks: BlockManager, id: int, prompt: Items[int]) -> Sequence:
    sequence = Sequence(id, prompt, max_num_tokens=30)
    assert blocks.allocate(sequence, len(prompt) + 4)
    return sequence


# Per sequence


@pytest.mark.parametrize(
    ("answer", "num_stored"),
    [
        ([50], 9),  # the first draft is rejected
        ([41, 50], 10),
        ([41, 42, 50], 11),
        ([41, 42, 43, 50], 11),  # the last draft was not computed
        ([50, 42, 43, 51, 52, 53], 9),  # and then came steps without drafts
        ([41, 42, 50, 51, 52, 53], 11),
    ],
)
def test_accepted_drafts_are_stored_and_rejected_ones_are_not(answer: list[int], num_stored: int) -> None:
    blocks = BlockManager(10, SIZE)
    stored, sequence = DraftBlocks(blocks), admitted(blocks, 0, prompt_of(9))
    assert stored.num_stored(sequence) == 0
    sequence.num_computed_tokens = 8
    stored.note(entry(sequence, 0, 9))
    assert stored.num_stored(sequence) == 9
    stored.note(entry(extended(sequence, [41]), 9, 10))
    stored.note(entry(extended(sequence, [41, 42]), 10, 11))
    sequence.token_ids += answer
    sequence.num_computed_tokens = 8 + len(answer)
    assert stored.num_stored(sequence) == num_stored


def test_a_draft_in_a_block_that_was_given_back_is_not_stored() -> None:
    blocks = BlockManager(20, SIZE)
    stored, sequence = DraftBlocks(blocks), admitted(blocks, 0, prompt_of(7))
    sequence.num_computed_tokens = 6
    stored.note(entry(sequence, 0, 7))
    stored.note(entry(extended(sequence, [41]), 7, 8))
    stored.note(entry(extended(sequence, [41, 42]), 8, 9))
    sequence.token_ids += [41]  # the second draft was not tried
    sequence.num_computed_tokens = 8
    blocks.shrink(sequence)
    admitted(blocks, 1, prompt_of(3))  # takes the block
    assert blocks.allocate(sequence, 1)
    sequence.token_ids += [42]  # where the answer goes on just as the second draft did
    sequence.num_computed_tokens = 9
    assert stored.num_stored(sequence) == 8


@pytest.mark.parametrize("kind", [BlockManager, PrefixCachingBlockManager])
def test_nothing_is_stored_in_the_other_blocks_that_follow_a_preemption(kind: type[BlockManager]) -> None:
    blocks = kind(20, SIZE)
    stored, sequence = DraftBlocks(blocks), admitted(blocks, 0, prompt_of(9))
    stored.note(entry(sequence, 0, 9))
    blocks.free(sequence)
    admitted(blocks, 1, prompt_of(9, 1))
    assert blocks.allocate(sequence, 9)
    assert stored.num_stored(sequence) == 0


def test_a_sequence_that_has_ended_is_forgotten() -> None:
    blocks = BlockManager(10, SIZE)
    stored, sequence = DraftBlocks(blocks), admitted(blocks, 0, prompt_of(9))
    stored.note(entry(sequence, 0, 9))
    stored.forget(0)
    stored.forget(5)  # unknown
    assert stored.num_stored(sequence) == 0


# Per block


def computed(blocks: BlockManager, sequence: Sequence, end: int) -> None:
    """The engine's model has computed so many tokens, and their blocks are registered."""
    sequence.num_computed_tokens = end
    blocks.allocate(sequence, 1)


def test_only_shared_blocks_that_the_draft_model_has_filled_are_stored() -> None:
    blocks = PrefixCachingBlockManager(20, SIZE)
    stored, prompt = DraftBlocks(blocks), prompt_of(14)
    first = admitted(blocks, 0, prompt)
    stored.note(entry(first, 0, 9))
    computed(blocks, first, 13)
    second = admitted(blocks, 1, prompt)
    assert blocks.tables[1].num_stored_tokens == 12
    assert stored.num_stored(second) == 8
    stored.note(entry(second, 8, 14))  # in the shared block too
    assert stored.num_stored(admitted(blocks, 2, prompt)) == 12


def test_a_block_that_is_filled_by_accepted_drafts_counts_at_the_next_entry() -> None:
    blocks = PrefixCachingBlockManager(20, SIZE)
    stored, sequence = DraftBlocks(blocks), admitted(blocks, 0, prompt_of(7))
    sequence.num_computed_tokens = 6
    stored.note(entry(sequence, 0, 7))
    stored.note(entry(extended(sequence, [41]), 7, 8))
    sequence.token_ids += [41, 42]
    computed(blocks, sequence, 8)
    stored.note(entry(sequence, 8, 9))
    blocks.free(sequence)
    assert stored.num_stored(admitted(blocks, 1, [*prompt_of(7), 41, 42, 43])) == 8


def test_a_block_that_others_have_overwritten_is_not_stored() -> None:
    blocks = PrefixCachingBlockManager(2, SIZE)
    stored, prompt = DraftBlocks(blocks), prompt_of(8)
    first, second, third = Sequence(0, prompt), Sequence(1, prompt_of(8, 1)), Sequence(2, prompt)
    assert blocks.find_prefix(third) == 0  # its prefixes stay known
    assert blocks.allocate(first, 8)
    stored.note(entry(first, 0, 8))
    blocks.free(first)  # not computed, so not registered
    assert blocks.allocate(second, 8)
    stored.note(entry(second, 0, 3))
    blocks.free(second)
    assert blocks.allocate(third, 8)
    assert blocks.tables[2].num_stored_tokens == 0
    assert stored.num_stored(third) == 0


# Acceptance


def served(drafter: DraftModel, blocks: BlockManager, rounds: Items[Items[Items[int]]]) -> list[EngineStep]:
    """The steps of an engine that serves prompts round by round. It checks that every draft is right."""
    config, steps = SchedulerConfig(12, 4), list[EngineStep]()
    execution = with_drafts(drafter, overlap=True)
    with TwinEngine(random_qwen3(), Endless(), config, 40, blocks, execution=execution) as engine:
        for prompts in rounds:
            for prompt in prompts:
                engine.add_request(prompt, SamplingParams(max_tokens=12))
            while engine.has_unfinished_requests:
                steps.append(engine.step())
    return steps


def text(seed: int, length: int) -> list[int]:
    return [2 + (7 * seed + 5 * i + i * i) % 27 for i in range(length)]


ROUNDS = {
    "new prompts": [[text(0, 6), text(1, 9)]],
    "prompts that share a beginning": [[text(0, 17)], [text(0, 17), [*text(0, 12), *text(1, 5)]]],
    "long prompts in chunks": [[text(0, 27), text(1, 26)], [[*text(0, 26), 4]]],
    "a conversation": [[text(0, 10)], [text(0, 10) + text(2, 12)]],
}


@pytest.mark.parametrize("rounds", list(ROUNDS))
@pytest.mark.parametrize("resting", [range(0), range(1), range(3), range(2, 9), range(1, 60, 2)])
@pytest.mark.parametrize(
    "make_blocks",
    [
        lambda: PrefixCachingBlockManager(60, SIZE),
        lambda: PrefixCachingBlockManager(12, SIZE, overcommit=True),
        lambda: BlockManager(12, SIZE, overcommit=True),
    ],
    ids=["room", "little room", "nothing shared"],
)
def test_a_rest_costs_no_later_draft(
    rounds: str, resting: range, make_blocks: Callable[[], BlockManager]
) -> None:
    blocks = make_blocks()
    steps = served(Scripted(random_qwen3(), blocks, resting), blocks, ROUNDS[rounds])
    assert any(step.accepted for step in steps), "the drafter never works"


# A shorter context


def test_a_sequence_that_outgrows_the_draft_model_goes_on_without_drafts() -> None:
    blocks = PrefixCachingBlockManager(60, SIZE)
    rounds = [[text(0, 9), text(1, 8)], [text(0, SHORT)], [text(2, SHORT + 1)]]
    last_draft = dict.fromkeys(range(4), 0)
    for step in served(DraftModel(short_qwen3(), blocks, 3), blocks, rounds):
        last_draft |= {each.sequence.id: each.end for each in step.scheduled.entries if each.draft_ids}
    assert last_draft == {0: SHORT + 1, 1: SHORT + 1, 2: SHORT + 1, 3: 0}  # a last draft is not computed


def test_a_prompt_that_is_too_long_has_no_draft_pass() -> None:
    small, blocks = FakeModel(), BlockManager(40, SIZE)
    small.config = SimpleNamespace(vocab_size=VOCAB_SIZE, max_position_embeddings=12)
    drafter = DraftModel(small, blocks, 3)  # type: ignore[arg-type]
    config = SchedulerConfig(8, 2)
    with drafting_engine(
        FakeModel(),  # type: ignore[arg-type]
        FakeTokenizer(),
        config,
        60,
        blocks,
        drafter=drafter,
    ) as engine:
        results = engine.generate([prompt_of(13), prompt_of(30)], SamplingParams(max_tokens=5))
    assert [len(result.token_ids) for result in results] == [5, 5]
    assert small.calls == []
