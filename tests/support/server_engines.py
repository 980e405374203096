"""Engines for the server's tests: instant ones without weights, and ones whose steps fail or wait."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from threading import Semaphore
from typing import Any

from tests.support.engines import drafting_engine, overlapping_engine
from tests.support.fakes import EOS, FakeModel, FakeTokenizer, continuation
from tiny_llm import (
    Engine,
    PrefixCachingBlockManager,
    SamplingParams,
    ScheduledTokens,
    SchedulerConfig,
    SchedulerOutput,
    Sequence,
)
from tiny_llm.speculation.drafter import Drafts

SECONDS = 60  # after which a thread counts as stuck
MAX_SEQ_LEN, BLOCK_SIZE, NUM_BLOCKS = 40, 4, 30


class StepFailureError(Exception):
    """What a step raises that was told to fail."""


class ChatFake(FakeTokenizer):
    """A tokenizer whose chat template writes the first letter of each role before the content."""

    has_chat_template = True

    def apply_chat_template(
        self, messages: list[dict[str, str]], add_generation_prompt: bool = True, **kwargs: Any
    ) -> list[int]:
        text = "".join(message["role"][0].upper() + message["content"] for message in messages)
        return self.encode(text + "A" * add_generation_prompt)


def make_engine(
    kind: Callable[..., Engine] = Engine,
    model: FakeModel | None = None,
    eos_token_ids: tuple[int, ...] = (EOS,),
    num_blocks: int = NUM_BLOCKS,
    max_num_seqs: int = 4,
    max_seq_len: int = MAX_SEQ_LEN,
) -> Engine:
    """An engine on a fake model, with prefix caching."""
    blocks = PrefixCachingBlockManager(num_blocks, BLOCK_SIZE)
    config = SchedulerConfig(8, max_num_seqs)
    return kind(model or FakeModel(), ChatFake(eos_token_ids=eos_token_ids), config, max_seq_len, blocks)


class Guesses:
    """A drafter that knows what the fake model will say, and is wrong at every fifth place of a sequence.

    Args:
        num_drafts: that it wants for each sequence.
    """

    def __init__(self, num_drafts: int = 3) -> None:
        self.num_drafts = num_drafts

    def rests(self, sequences: Items[Sequence]) -> bool:
        return False

    def wanted(self, entries: Items[ScheduledTokens]) -> dict[int, int]:
        return {entry.sequence.id: self.num_drafts for entry in entries}

    def propose(
        self, output: SchedulerOutput, granted: Mapping[int, int], params: Mapping[int, SamplingParams]
    ) -> Drafts:
        sequences = {entry.sequence.id: entry.sequence for entry in output.entries}
        return Drafts({id: self._draft(sequences[id].token_ids, number) for id, number in granted.items()})

    def release(self, sequence_id: int) -> None:
        pass

    def close(self) -> None:
        pass

    def _draft(self, tokens: list[int], number: int) -> list[int]:
        drafts = continuation(tokens, number)
        return [1 if (len(tokens) + place) % 5 == 0 else token for place, token in enumerate(drafts)]


def guessing_engine(*args: Any) -> Engine:
    """An engine whose drafts are often right."""
    return drafting_engine(*args, drafter=Guesses())


ENGINES: dict[str, Callable[..., Engine]] = {
    "plain": lambda model=None: make_engine(Engine, model),
    "overlapping": lambda model=None: make_engine(overlapping_engine, model),
    "speculative": lambda model=None: make_engine(guessing_engine, model),
}


def failing(engine: Engine, should_fail: Callable[[SchedulerOutput], bool]) -> Engine:
    """Let an engine's steps fail after the model has run, when a function of the step says so."""
    runner: Any = engine.execution.runner  # type: ignore[attr-defined]
    runner = getattr(runner, "runner", runner)  # the one behind a `VerifyingRunner`
    scheduled, compute = engine.scheduler.schedule, runner.compute
    outputs: list[SchedulerOutput] = []

    def schedule() -> SchedulerOutput:
        outputs.append(scheduled())
        return outputs[-1]

    def compute_or_fail(*args: Any) -> Any:
        samples = compute(*args)
        if should_fail(outputs[-1]):
            raise StepFailureError("told to fail")
        return samples

    engine.scheduler.schedule = schedule  # type: ignore[method-assign]
    runner.compute = compute_or_fail
    return engine


class GatedModel(FakeModel):
    """A model each of whose calls waits until the test lets it go."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.gate = Semaphore(0)
        self.is_waiting = Semaphore(0)

    def hidden_states(self, *args: Any, **kwargs: Any) -> Any:
        self.is_waiting.release()
        assert self.gate.acquire(timeout=SECONDS), "the test never let this step go"
        return super().hidden_states(*args, **kwargs)

    def next_step(self) -> None:
        """Let the step that waits go, and wait for the next one."""
        self.gate.release()
        assert self.is_waiting.acquire(timeout=SECONDS), "no step followed"
