"""Requests served by the newest means that a package has: the engine, the batch, or one after the other."""

from collections.abc import Callable, Sequence
from functools import partial

from tiny_llm import (
    BatchGenerator,
    BlockManager,
    Engine,
    PrefixCachingBlockManager,
    Qwen3Model,
    SamplingParams,
    SchedulerConfig,
    UnlimitedBlocks,
)
from tiny_llm.scheduling.blocks import Blocks
from tiny_llm.speculation.endless_tokenizer import EndlessTokenizer

BLOCK_SIZE = 16
Prompts = Sequence[Sequence[int]]
Serve = Callable[[Qwen3Model, Prompts, int], None]


class Newest:
    """Serves by the newest means that is written, which the first call finds out.

    Args:
        model: of a package.
        one_by_one: what serves where there is nothing newer.
    """

    def __init__(self, model: Qwen3Model, one_by_one: Serve) -> None:
        self.model = model
        kinds = lambda *_: UnlimitedBlocks(), BlockManager, PrefixCachingBlockManager
        self.means: list[Serve] = [one_by_one, in_slots, *(partial(by_budget, kind) for kind in kinds)]

    def serve(self, prompts: Prompts, max_tokens: int) -> None:
        """Answer all prompts, with so many tokens each."""
        try:
            self.means[-1](self.model, prompts, max_tokens)
        except NotImplementedError:
            if len(self.means) == 1:
                raise
            self.means.pop()
            self.serve(prompts, max_tokens)


def in_slots(model: Qwen3Model, prompts: Prompts, max_tokens: int) -> None:
    """By the batch generator of week 2."""
    with BatchGenerator(model, EndlessTokenizer(), len(prompts)) as generator:
        for prompt in prompts:
            generator.submit(prompt, SamplingParams(max_tokens=max_tokens))
        while generator.has_work:
            generator.step()


def by_budget(
    make_blocks: Callable[[int, int], Blocks], model: Qwen3Model, prompts: Prompts, max_tokens: int
) -> None:
    """By the engine of week 3."""
    longest = len(prompts[0]) + max_tokens
    blocks = make_blocks(len(prompts) * -(-longest // BLOCK_SIZE), BLOCK_SIZE)
    config = SchedulerConfig(longest * len(prompts), len(prompts))
    with Engine(model, EndlessTokenizer(), config, longest, blocks) as engine:
        for prompt in prompts:
            engine.add_request(prompt, SamplingParams(max_tokens=max_tokens))
        while engine.has_unfinished_requests:
            engine.step()
