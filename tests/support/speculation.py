"""Drafters for the random schedules, and engines that use them."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from random import Random

from tests.support.schedules import random_qwen3
from tiny_llm import (
    BlockManager,
    CostModel,
    DraftModel,
    Engine,
    LookupDrafter,
    SamplingParams,
    ScheduledTokens,
    SchedulerOutput,
    Sequence,
    SpeculativeEngine,
)
from tiny_llm.serving.given.adaptive_drafter import AdaptiveDrafter
from tiny_llm.serving.given.draft_cost import DraftCost
from tiny_llm.serving.given.drafter import Drafter, Drafts

COST = DraftCost({1: CostModel(1.0, 0.1, 0.01), 4: CostModel(1.0, 0.4, 0.01)}, CostModel(0.1, 0.01))
"""So that drafts pay at times."""
MakeDrafter = Callable[[BlockManager], Drafter]


class NoisyDrafter:
    """Another drafter's drafts, some of them changed and some left out; at times it rests."""

    def __init__(self, drafter: Drafter, seed: int) -> None:
        self.drafter = drafter
        self.random = Random(seed)

    def rests(self, sequences: Items[Sequence]) -> bool:
        return self.random.random() < 0.2

    def wanted(self, entries: Items[ScheduledTokens]) -> dict[int, int]:
        most = self.drafter.wanted(entries)
        return {id: self.random.randrange(number + 1) for id, number in most.items()}

    def propose(
        self, output: SchedulerOutput, granted: Mapping[int, int], params: Mapping[int, SamplingParams]
    ) -> Drafts:
        greedy = dict.fromkeys(params, SamplingParams())
        drafts = self.drafter.propose(output, granted, greedy).token_ids
        changed = {id: [self._change(token) for token in each] for id, each in drafts.items()}
        return Drafts({id: each[: self.random.randrange(len(each) + 1)] for id, each in changed.items()})

    def release(self, sequence_id: int) -> None:
        self.drafter.release(sequence_id)

    def close(self) -> None:
        self.drafter.close()

    def _change(self, token: int) -> int:
        return self.random.randrange(29) if self.random.random() < 0.2 else token


def noisy(blocks: BlockManager) -> Drafter:
    return NoisyDrafter(DraftModel(random_qwen3(), blocks, 4), 1)


DRAFTERS: dict[str, MakeDrafter] = {
    "lookup": lambda blocks: LookupDrafter(5, 1, 3),
    "noise": noisy,
    "those that pay": lambda blocks: AdaptiveDrafter(noisy(blocks), COST),
}


def speculative(make_drafter: MakeDrafter) -> Callable[..., Engine]:
    """Makes engines whose drafts come from such a drafter, where they have a pool."""

    def make(  # type: ignore[no-untyped-def]
        model, tokenizer, config, max_seq_len, blocks, policy, clock, kv_bits
    ) -> Engine:
        drafter = make_drafter(blocks)
        return SpeculativeEngine(
            model, tokenizer, config, max_seq_len, blocks, policy, clock, drafter, kv_bits
        )

    return make
