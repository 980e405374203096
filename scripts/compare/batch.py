"""The same requests through both packages' BatchGenerator: what was computed, when, and for whom."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from scripts.checkpoints.files import SHIPPED_MODEL, resolve_checkpoint
from scripts.checkpoints.models import as_chat
from scripts.compare.costs import computed, guarded
from scripts.compare.differences import Difference, Tree, first_difference
from scripts.compare.learner import Learner
from scripts.compare.library import Library
from scripts.hardware.memory import memory_use
from scripts.run.recorder import Recorder

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

CHOSEN_PROMPTS = (0, 2, 6, 4)  # of the demo's: two short ones, a long one, and one that finds no slot free
SETTINGS = {"batch_size": 3, "prefill_step": 24, "max_seq_len": 512}
MAX_TOKENS = 12
MAX_RUNS = 3  # the first warms up
SECONDS_TO_END = 30.0


class CountingModel:
    """A model that counts its calls and the tokens it was given."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.num_calls = 0
        self.num_tokens = 0

    def __call__(self, tokens: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        """As for the model."""
        self.num_calls += 1
        self.num_tokens += tokens.size
        logits: mx.array = self._model(tokens, *args, **kwargs)
        return logits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


@dataclass(frozen=True)
class BatchRun:
    """One run of a generator, whole or up to where it failed."""

    recorder: Recorder
    model: CountingModel
    peak_bytes: int
    failed: Difference | None = None

    @property
    def seconds(self) -> float:
        """Up to the end of the last phase."""
        events = self.recorder.events
        return events[-1].end if events else 0.0


@dataclass(frozen=True)
class BatchComparison:
    """The fastest run of each side, and what differs."""

    yours: BatchRun
    reference: BatchRun
    model_difference: Difference | None
    """Between the logits of the two models: then the generator is not to blame."""

    @property
    def is_equal(self) -> bool:
        """Whether yours came to its end with the reference's counts and answers."""
        return not self.yours.failed and not self.answers and all(a == b for a, b in self.counts.values())

    @property
    def counts(self) -> dict[str, tuple[int, int]]:
        """What each side computed, by its name: yours, then the reference's."""
        yours, reference = self.yours.model, self.reference.model
        return {
            "model calls": (yours.num_calls, reference.num_calls),
            "tokens computed": (yours.num_tokens, reference.num_tokens),
        }

    @property
    def answers(self) -> list[str]:
        """A sentence on each request whose tokens, or whose reason to end, are not the reference's."""
        yours, reference = (
            [
                {"tokens": each.token_ids, "finish_reason": each.finish_reason}
                for each in run.recorder.requests
            ]
            for run in (self.yours, self.reference)
        )
        found = [first_difference(*pair) for pair in zip(yours, reference, strict=True)]
        return [f"request {index}: {each.sentence}" for index, each in enumerate(found) if each]


def compare_batch(
    learner: Learner, mine: Library, reference: Library, repeats: int
) -> BatchComparison | Difference:
    """Serve the requests with each package, in turns.

    Returns:
        What came of it, or why the learner's side could not begin.

    Raises:
        ValueError: the shipped checkpoint is missing.
    """
    checkpoint = resolve_checkpoint(SHIPPED_MODEL)
    tokenizer = reference.load_tokenizer(checkpoint)
    texts = json.loads((checkpoint / "demo_prompts.json").read_text(encoding="utf-8"))
    prompts = [as_chat(tokenizer, texts[index]) for index in CHOSEN_PROMPTS]

    def load(tiny: Library) -> tuple[Any, Tree]:
        # Float32, so that another order of the same sums changes no token.
        model = tiny.load_model(checkpoint, mx.float32)
        return model, computed(lambda: model(mx.array([prompts[0]])))

    model, logits = load(reference)
    own = guarded(learner, lambda: load(mine), SECONDS_TO_END)
    if isinstance(own, Difference):
        return own
    theirs: list[BatchRun] = []
    yours: list[BatchRun] = []
    for _ in range(min(repeats, MAX_RUNS)):
        run = serve(learner, reference, CountingModel(model), tokenizer, prompts, None)
        assert isinstance(run, BatchRun), run
        theirs.append(run)
        most = 3 * run.recorder.num_steps
        found = serve(learner, mine, CountingModel(own[0]), tokenizer, prompts, most)
        if isinstance(found, Difference):
            return found
        yours.append(found)
        if found.failed:
            break
    return BatchComparison(fastest(yours), fastest(theirs), first_difference(own[1], logits))


def fastest(runs: list[BatchRun]) -> BatchRun:
    """The least disturbed of the runs after the first; the last one if it failed."""
    return runs[-1] if runs[-1].failed else min(runs[1:] or runs, key=lambda run: run.seconds)


def serve(
    learner: Learner,
    tiny: Library,
    model: CountingModel,
    tokenizer: "TokenizerWrapper",
    prompts: list[list[int]],
    max_steps: int | None,
) -> BatchRun | Difference:
    """Serve the prompts to the end, or up to an error or as many steps; a Difference if it cannot begin."""
    recorders: list[Recorder] = []

    def run_all() -> Difference | None:
        recorder = Recorder(tiny.BatchGenerator(model, tokenizer, **SETTINGS))
        for prompt in prompts:
            recorder.submit(prompt, tiny.SamplingParams(max_tokens=MAX_TOKENS))
        recorders.append(recorder)
        while recorder.has_work:
            if recorder.num_steps == max_steps:
                sentence = f"has not finished after {max_steps} steps, 3 times the reference's"
                return Difference("no end", sentence)
            recorder.step()
        return None

    with memory_use() as memory:
        failed = guarded(learner, run_all, SECONDS_TO_END)
    for recorder in recorders:
        guarded(learner, recorder.generator.close, SECONDS_TO_END)
        return BatchRun(recorder, model, memory.peak, failed)
    assert failed is not None
    return failed
