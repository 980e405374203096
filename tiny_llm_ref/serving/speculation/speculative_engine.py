"""An engine that computes several tokens of an answer in one step, where drafts of them prove right."""

import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from dataclasses import replace

from ...batching.answer import GenerationResult, TokenLogprobs
from ...generation.generate import Tokenizer
from ...generation.sampler import SamplingParams
from ...model.qwen3 import Qwen3Model
from ..block_manager import BlockManager
from ..engine import Engine, EngineStep
from ..given.blocks import Blocks
from ..given.drafter import Drafter
from ..given.engine_request import EngineRequest
from ..given.lookup_drafter import LookupDrafter
from ..given.policy import Policy
from ..given.speculative_runner import SpeculativeRunner
from ..scheduler import SchedulerConfig
from ..structured.grammar_drafter import GrammarDrafter
from .draft_model import DraftModel


def accept_until_done(
    request: EngineRequest, tokens: Items[int], logprobs: Items[TokenLogprobs] = ()
) -> list[int]:
    """Let a request accept tokens, one by one, until its answer ends.

    Args:
        request: an unfinished request.
        tokens: at least one.
        logprobs: one per token, or none at all.

    Returns:
        The tokens it accepted, the one that ended the answer included. The others are dropped.
    """
    for count, token in enumerate(tokens, 1):
        request.accept(token, logprobs[count - 1] if logprobs else None)
        if request.is_done:
            return list(tokens[:count])
    return list(tokens)


def check_draft_model(drafter: Drafter, vocab_size: int, blocks: BlockManager) -> None:
    """Raise ValueError if a drafter's model, if it has one, does not fit the engine's model and blocks.

    Args:
        drafter: the engine's; one that asks another one has it as its `drafter`.
        vocab_size: of the engine's model; a draft that it does not know would be read beyond its logits.
        blocks: the engine's, whose tables both models use.
    """
    inner: Drafter | None = drafter
    while inner is not None and not isinstance(inner, DraftModel):
        inner = getattr(inner, "drafter", None)
    if inner is None:
        return
    own = inner.runner.model.config.vocab_size
    if own != vocab_size:
        raise ValueError(
            f"the draft model has a vocabulary of {own} tokens and the model one of {vocab_size}: choose a "
            "draft model with the same tokenizer"
        )
    if inner.runner.blocks is not blocks:
        raise ValueError("the draft model has other blocks than the engine: give both the same BlockManager")


class SpeculativeEngine(Engine):
    """An engine with the answers of `Engine`, in fewer steps.

    In each step, drafts guess the next tokens of some answers. The model computes the drafts together with
    everything else, and accepts those that it could have sampled itself.

    Greedy requests get the same tokens as without drafts. So do requests that sample, unless drafts come
    from a model: their tokens then have the same distribution.

    Args:
        model, tokenizer, config, max_seq_len, policy, clock, kv_bits: as for `Engine`. The keys and values
            of a draft model stay in floats.
        blocks: the blocks of a pool, which drafts need; as for `Engine` by default.
        drafter: where drafts come from; a `LookupDrafter` by default.

    Raises:
        ValueError: as for `Engine`; `blocks` belong to no pool; or drafts come from a model that has another
            vocabulary or other blocks.
    """

    runner: SpeculativeRunner

    def __init__(
        self,
        model: Qwen3Model,
        tokenizer: Tokenizer,
        config: SchedulerConfig | None = None,
        max_seq_len: int = 512,
        blocks: Blocks | None = None,
        policy: Policy | None = None,
        clock: Callable[[], float] = time.perf_counter,
        drafter: Drafter | None = None,
        kv_bits: int | None = None,
    ) -> None:
        super().__init__(model, tokenizer, config, max_seq_len, blocks, policy, clock, kv_bits)
        pool = self.scheduler.blocks
        if not isinstance(pool, BlockManager):
            raise ValueError(f"drafts need the blocks of a pool, got {type(pool).__name__}: use BlockManager")
        self.drafter: Drafter = LookupDrafter() if drafter is None else drafter
        check_draft_model(self.drafter, self.vocab_size, pool)
        self.runner = SpeculativeRunner(model, pool, self.drafter, kv_bits)

    def add_request(
        self, prompt: str | Items[int], params: SamplingParams | None = None, priority: int = 0
    ) -> int:
        """Do what `Engine` does. From the first request with a grammar on, drafts keep to grammars."""
        request_id = super().add_request(prompt, params, priority)
        self._mind_grammar(self.requests[request_id])
        return request_id

    def restore(self, request: EngineRequest) -> None:
        """Do what `Engine` does; drafts keep to the request's grammar, if it has one."""
        super().restore(request)
        self._mind_grammar(request)

    def step(self) -> EngineStep:
        """Compute one step, with drafts where there is room for them. If the drafter rests, do without.

        `scheduled` of the result includes the drafts. `sampled` has the last token of each answer, and
        `accepted` has the tokens before it, for answers that got more than one.

        Raises:
            ValueError: a step is under way, or the engine is closed.
        """
        if self.is_stepping:
            raise ValueError("a step is under way: wait until it has ended")
        if self.drafter.rests(self.scheduler.running):
            return super().step()
        with self._closed_on_error(), self.mid_step():
            start = self._clock()
            output = self.scheduler.schedule()
            params = {id: self.requests[id].params for id in output.final_ids}
            granted = self.scheduler.grant_drafts(output, self.drafter.wanted(output.final))
            drafts = self.drafter.propose(output, granted, params)
            drafted = output.with_drafts(drafts.token_ids)
            verified = self.runner.verify(drafted, params, drafts)
            tokens = {
                id: accept_until_done(self.requests[id], each, verified.logprobs[id])
                for id, each in verified.token_ids.items()
            }
            self.scheduler.complete_drafted(output, tokens)
            self.scheduler.policy.record(drafted, self._clock() - start)
            step = EngineStep(
                drafted,
                {id: each[-1] for id, each in tokens.items()},
                self._finish(tokens),
                {id: each[len(tokens[id]) - 1] for id, each in verified.logprobs.items() if each},
                {id: each[:-1] for id, each in tokens.items() if len(each) > 1},
            )
            return self.without_aborted(step) if self.aborted_in_step else step

    def without_aborted(self, step: EngineStep) -> EngineStep:
        """Do what `Engine` does, and leave out the accepted drafts of aborted requests."""
        left = super().without_aborted(step)
        return replace(left, accepted={id: each for id, each in step.accepted.items() if id in left.sampled})

    def _mind_grammar(self, request: EngineRequest) -> None:
        if request.constraint is not None and not isinstance(self.drafter, GrammarDrafter):
            self.drafter = self.runner.drafter = GrammarDrafter(self.drafter)

    def _finish(self, request_ids: Iterable[int]) -> tuple[GenerationResult, ...]:
        """Return the results of the requests that are done, and release what they hold."""
        done = [self.requests[id] for id in request_ids if self.requests[id].is_done]
        results = tuple(request.result() for request in done)
        for request in done:
            self.runner.release(request.sequence.id)
            self.scheduler.remove(request.sequence.id)
            del self.requests[request.sequence.id]
        return results
