"""Drafters for the random schedules, and engines that use them."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from dataclasses import replace
from functools import cache
from random import Random

from tests.support.schedules import SIZES, config_of, loud_tensors, random_qwen3, variant_of
from tiny_llm import (
    BlockManager,
    CostModel,
    DraftModel,
    Engine,
    EngineStep,
    LookupDrafter,
    Qwen3Model,
    SamplingParams,
    ScheduledTokens,
    SchedulerOutput,
    Sequence,
    with_drafts,
)
from tiny_llm.model.loader import Tensors, build_model
from tiny_llm.speculation.adaptive_drafter import AdaptiveDrafter
from tiny_llm.speculation.draft_cost import DraftCost
from tiny_llm.speculation.drafter import Drafter, Drafts

COST = DraftCost({1: CostModel(1.0, 0.1, 0.01), 4: CostModel(1.0, 0.4, 0.01)}, CostModel(0.1, 0.01))
"""So that drafts pay at times."""
SHORT = 18
"""The context of a draft model that is too short for many sequences."""
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


class GreedyDraftModel(DraftModel):
    """A draft model whose drafts are not drawn, so that they change no token of a request that samples."""

    def propose(
        self, output: SchedulerOutput, granted: Mapping[int, int], params: Mapping[int, SamplingParams]
    ) -> Drafts:
        greedy = {id: replace(each, temperature=0.0) for id, each in params.items()}
        return super().propose(output, granted, greedy)


class RestingDraftModel(GreedyDraftModel):
    """The same, and it rests at random, for some steps in a row."""

    def __init__(self, model: Qwen3Model, blocks: BlockManager, seed: int = 1) -> None:
        super().__init__(model, blocks, 4)
        self.random = Random(seed)
        self.is_resting = False

    def rests(self, sequences: Items[Sequence]) -> bool:
        if self.random.random() < 0.4:
            self.is_resting = not self.is_resting
        return self.is_resting


class TwinEngine(Engine):
    """An engine whose draft model is its own model, so that every draft of a greedy request must be right.

    A wrong one was guessed from keys that the draft model never stored. No token of an answer would tell.
    """

    def step(self) -> EngineStep:
        greedy = {id for id, request in self.requests.items() if not request.params.temperature}
        step = super().step()
        for entry in step.scheduled.entries:
            id = entry.sequence.id
            if entry.draft_ids and id in greedy & step.sampled.keys():
                tokens = (*step.accepted.get(id, ()), step.sampled[id])[: len(entry.draft_ids)]
                assert tokens == entry.draft_ids[: len(tokens)], f"a draft of request {id} is rejected"
        return step


@cache
def short_qwen3() -> Qwen3Model:
    """The model of the schedules with a shorter context."""
    variant = variant_of(False, SIZES["head_dim"])
    config = replace(config_of(variant), max_position_embeddings=SHORT)
    return build_model(config, Tensors(loud_tensors(variant)))


def noisy(blocks: BlockManager) -> Drafter:
    return NoisyDrafter(DraftModel(random_qwen3(), blocks, 4), 1)


TWINS: dict[str, MakeDrafter] = {
    "one that rests": lambda blocks: RestingDraftModel(random_qwen3(), blocks),
    "a short one": lambda blocks: GreedyDraftModel(short_qwen3(), blocks, 4),
    "a short one that rests": lambda blocks: RestingDraftModel(short_qwen3(), blocks),
}
"""Draft models with the weights of the model."""
DRAFTERS: dict[str, MakeDrafter] = {
    "lookup": lambda blocks: LookupDrafter(5, 1, 3),
    "noise": noisy,
    "those that pay": lambda blocks: AdaptiveDrafter(noisy(blocks), COST),
    **TWINS,
}


def speculative(make_drafter: MakeDrafter) -> Callable[..., Engine]:
    """Makes engines whose drafts come from such a drafter; steps overlap where it rests."""

    def make(  # type: ignore[no-untyped-def]
        model, tokenizer, config, max_seq_len, blocks, policy, clock, kv_bits
    ) -> Engine:
        is_twin = make_drafter in TWINS.values() and model is random_qwen3() and kv_bits is None
        kind = TwinEngine if is_twin else Engine
        execution = with_drafts(make_drafter(blocks), overlap=True)
        return kind(model, tokenizer, config, max_seq_len, blocks, policy, clock, kv_bits, execution)

    return make
