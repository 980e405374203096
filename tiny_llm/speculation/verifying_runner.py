"""Compute a step with drafts in one pass of the model, and keep the drafts that are accepted."""

from collections.abc import Mapping
from collections.abc import Sequence as Items
from copy import copy
from dataclasses import replace
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ..batching.answer import TokenLogprobs
from ..engine.model_runner import ModelRunner
from ..engine.sampling_batch import BatchSampler, SamplingBatch, check_numbers, random_numbers, read_rows
from ..generation.sampler import SamplingParams
from ..scheduling.scheduler_output import ScheduledTokens, SchedulerOutput
from .drafter import Drafts, extended
from .rejection import probabilities, reject
from .verification import rows_to_keep, rows_to_verify

NO_DRAFT = -1
"""Stands for the draft of a sequence's last row, which has none."""
STREAM = 0x2545F4914F6CDD1D
"""Changes random numbers, so that accepting a draft and drawing its replacement use independent ones."""


class Verified(NamedTuple):
    """The new tokens of each final entry, by sequence id, and their log-probabilities if asked for."""

    token_ids: dict[int, list[int]]
    logprobs: dict[int, list[TokenLogprobs]]


class VerifyingRunner:
    """Compute steps with drafts on the model and the pool of another runner.

    Args:
        runner: computes steps without drafts.
    """

    def __init__(self, runner: ModelRunner) -> None:
        self.verifier = Verifier(runner.sampler)
        self.runner = copy(runner)  # with the same model and pool
        self.runner.sampler = self.verifier

    def verify(
        self, output: SchedulerOutput, params: Mapping[int, SamplingParams], drafts: Drafts
    ) -> Verified:
        """Compute a step, and evaluate its samples and the pool before returning.

        Args:
            output: the step, with its drafts.
            params: for each sequence with a final entry, by id.
            drafts: the same drafts, with the distributions they were drawn from.

        Returns:
            For each final entry, its accepted drafts and the token sampled after them.

        Raises:
            NoNumbersError: as for `check_numbers`, unless it concerns only what follows rejected drafts.
        """
        self.verifier.expect(output.final if drafts.token_ids else (), drafts)
        if not drafts.token_ids:
            samples = self.runner.run(output, params)
            return Verified(
                {id: [token] for id, token in samples.token_ids.items()},
                {id: [logprobs] for id, logprobs in samples.logprobs.items()},
            )
        batch = self.runner.batch_of(output)
        rows = mx.array(rows_to_verify(output.entries, np.array(batch.query_start_loc)))
        entries = [row for entry in output.final for row in rows_of(entry)]
        sampled = self.runner.compute(replace(batch, logits_indices=rows), entries, params)
        mx.eval([each.arrays for each in sampled], self.verifier.is_accepted, self.runner.pool.state)
        if not sampled:
            return Verified({}, {})
        token_ids, logprobs = read_rows(sampled[0])
        kept = rows_to_keep(output.final, np.array(self.verifier.is_accepted).tolist())
        check_numbers(sampled[0], [row for rows in kept.values() for row in rows])
        return Verified(
            {id: [token_ids[row] for row in rows] for id, rows in kept.items()},
            {id: [logprobs[row] for row in rows if row in logprobs] for id, rows in kept.items()},
        )


class Verifier:
    """A sampler that also tells which rows accept their draft. The token of such a row is its draft.

    Unless drafts are expected, it only samples.

    Args:
        sampler: samples the rows.

    Attributes:
        is_accepted: [R], booleans, of the last call.
    """

    def __init__(self, sampler: BatchSampler) -> None:
        self.sampler = sampler
        self.is_accepted = mx.zeros(0, mx.bool_)
        self._draft_ids = mx.zeros(0, mx.int32)
        self._with_probs: list[int] = []
        self._probs: list[mx.array] = []

    def expect(self, final: Items[ScheduledTokens], drafts: Drafts) -> None:
        """Note the drafts of a step's final entries, which the next call verifies; no entries, no drafts."""
        self._draft_ids = mx.array([id for entry in final for id in (*entry.draft_ids, NO_DRAFT)], mx.int32)
        self._with_probs, self._probs, start = [], [], 0
        for entry in final:
            num_drafts = len(entry.draft_ids)
            if num_drafts and entry.sequence.id in drafts.probs:
                self._with_probs += range(start, start + num_drafts)
                self._probs.append(drafts.probs[entry.sequence.id][:num_drafts])
            start += num_drafts + 1

    def __call__(self, logits: mx.array, batch: SamplingBatch) -> mx.array:
        """Sample every row: [R, V] -> [R]."""
        token_ids = self.sampler(logits, batch)
        if not self._draft_ids.size:
            return token_ids
        self.is_accepted = token_ids == self._draft_ids
        if not self._with_probs:
            return token_ids
        rows = mx.array(self._with_probs)
        part = SamplingBatch(
            tuple([batch.params[row] for row in self._with_probs]), batch.numbers[self._with_probs]
        )
        accepted, replaced = reject(
            probabilities(logits[rows], part),
            numbers_of(mx.concatenate(self._probs), self._draft_ids[rows]),
            self._draft_ids[rows],
            mx.array(other_uniform(part)),
            mx.array(part.uniform),
        )
        token_ids[rows] = mx.where(accepted, self._draft_ids[rows], replaced).astype(token_ids.dtype)
        self.is_accepted[rows] = accepted
        return token_ids


def numbers_of(probs: mx.array, draft_ids: mx.array) -> mx.array:
    """The distributions of drafts, [R, V]; where they are not numbers, as if no other draft were possible."""
    is_draft = mx.arange(probs.shape[-1]) == draft_ids[:, None]
    return mx.where(mx.isnan(mx.sum(probs, axis=-1, keepdims=True)), is_draft.astype(probs.dtype), probs)


def rows_of(entry: ScheduledTokens) -> list[ScheduledTokens]:
    """An entry for each row after which a token is sampled, as if all drafts before it had been accepted."""
    end = entry.end - len(entry.draft_ids)
    drafted = [extended(entry.sequence, entry.draft_ids[:i]) for i in range(1, len(entry.draft_ids) + 1)]
    return [ScheduledTokens(each, end + i - 1, 1, True) for i, each in enumerate([entry.sequence, *drafted])]


def other_uniform(batch: SamplingBatch) -> npt.NDArray[np.float32]:
    """[R], a second random number for each row, independent of `batch.uniform`."""
    numbers = batch.numbers ^ np.uint64(STREAM)
    return replace(batch, numbers=random_numbers(numbers, np.zeros_like(numbers))).uniform
