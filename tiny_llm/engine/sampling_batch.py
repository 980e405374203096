"""The interface between runners and samplers: all rows of a step in one call, each with its parameters."""

import math
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ..batching.answer import TokenLogprobs
from ..generation.generate import to_logprobs
from ..generation.sampler import SamplingParams, make_sampler
from ..model.engine_operations import EngineOperations, MaskRows
from ..scheduling.scheduler_output import ScheduledTokens
from .adjusted_logits import adjust_logits

Floats = npt.NDArray[np.float32]
NO_TOP_K = 2**31 - 1
"""More than any vocabulary holds."""


class StepSamples(NamedTuple):
    """The samples of a step, by sequence id; log-probabilities only for requests that asked for them."""

    token_ids: dict[int, int]
    logprobs: dict[int, TokenLogprobs]


class NoNumbersError(FloatingPointError):
    """The logits of some sequences, by id, hold NaN or infinity."""

    def __init__(self, sequence_ids: Iterable[int]) -> None:
        super().__init__(
            "the logits of the model are not numbers: the checkpoint is damaged, or a product overflowed"
        )
        self.sequence_ids = frozenset(sequence_ids)


@dataclass(frozen=True)
class SamplingBatch:
    """How to sample each of B rows. Everything is on the host, so reading it waits for nothing.

    Args:
        params: the parameters of each row.
        numbers: [B], one random integer per row, at least 0 and below 2**64.
    """

    params: tuple[SamplingParams, ...]
    numbers: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, entries: Items[ScheduledTokens], params: Mapping[int, SamplingParams]) -> "SamplingBatch":
        """Make the rows of a step's final entries, each with its own random number.

        A request's n-th token is drawn with the n-th number of its seed, whatever else is in the step and
        however often the request was preempted.

        Args:
            entries: one per row.
            params: by sequence id.
        """
        rows = tuple([params[entry.sequence.id] for entry in entries])
        seeds = [each.seed or 0 for each in rows]
        draws = [entry.sequence.num_tokens - entry.sequence.num_prompt_tokens for entry in entries]
        return cls(rows, random_numbers(np.array(seeds, np.uint64), np.array(draws, np.uint64)))

    @cached_property
    def temperature(self) -> Floats:
        """[B]; 0 for a greedy row."""
        return np.array([each.temperature for each in self.params], np.float32)

    @cached_property
    def top_p(self) -> Floats:
        """[B]; infinite for a row without top_p."""
        return np.array([each.top_p if 0 < each.top_p < 1 else np.inf for each in self.params], np.float32)

    @cached_property
    def top_k(self) -> npt.NDArray[np.int32]:
        """[B]; `NO_TOP_K` for a row without top_k."""
        return np.array([min(each.top_k or NO_TOP_K, NO_TOP_K) for each in self.params], np.int32)

    @cached_property
    def log_min_p(self) -> Floats:
        """[B], the logarithm of min_p; -inf for a row without min_p."""
        return np.array(
            [math.log(each.min_p) if each.min_p else -math.inf for each in self.params], np.float32
        )

    @cached_property
    def uniform(self) -> Floats:
        """[B], the random number of each row as a multiple of 2**-23, at least 0 and below 1."""
        return (self.numbers >> np.uint64(41)).astype(np.float32) * np.float32(2**-23)

    @property
    def is_greedy(self) -> bool:
        """Whether all rows are greedy."""
        return not self.temperature.any()

    @property
    def has_rank_cuts(self) -> bool:
        """Whether any row uses top_k or top_p."""
        return bool((self.top_k < NO_TOP_K).any() or (self.top_p < np.inf).any())

    @property
    def has_cuts(self) -> bool:
        """Whether any row uses top_k, top_p or min_p."""
        return self.has_rank_cuts or bool((self.log_min_p > -np.inf).any())


BatchSampler = Callable[[mx.array, SamplingBatch], mx.array]
"""Logits [B, V] -> token ids [B], without evaluating either."""


@dataclass(frozen=True)
class Sampled:
    """The samples of some entries, as lazy arrays: nothing is computed until they are evaluated.

    Attributes:
        token_ids: [B]
        totals: [B], the sum of each row's logits, by which `check_numbers` sees whether they are numbers.
        num_top: for each of the R rows that asked for log-probabilities, its number of likeliest tokens.
        logprobs: for these rows, the log-probability of the sampled token [R], and the ids and
            log-probabilities of the likeliest tokens in any order [R, n] each; empty if R is 0.
    """

    entries: Items[ScheduledTokens]
    token_ids: mx.array
    totals: mx.array
    num_top: Mapping[int, int]
    logprobs: tuple[mx.array, ...]

    @classmethod
    def of(
        cls,
        logits: mx.array,
        entries: Items[ScheduledTokens],
        params: Mapping[int, SamplingParams],
        sampler: BatchSampler,
        mask_rows: Callable[[], MaskRows] | None = None,
    ) -> "Sampled":
        """Sample a token for each entry.

        Args:
            logits: [B, V], the logits after the last token of each entry.
            entries: B entries, in the order of the rows.
            params: by sequence id; they have a seed unless they are greedy.
            sampler: samples the rows.
            mask_rows: as for `EngineOperations`.
        """
        adjusted = adjust_logits(logits, entries, params, mask_rows)
        token_ids = sampler(adjusted, SamplingBatch.of(entries, params))
        asked = enumerate(params[entry.sequence.id].logprobs for entry in entries)
        num_top = {row: number for row, number in asked if number is not None}
        logprobs = logprobs_of(logits, token_ids, num_top)
        return cls(entries, token_ids, totals_of(logits), num_top, logprobs)

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays to evaluate."""
        return [self.token_ids, self.totals, *self.logprobs]


def read_samples(sampled: Items[Sampled]) -> StepSamples:
    """Read the numbers of samples that have been evaluated, if `check_numbers` has nothing against them."""
    samples = StepSamples({}, {})
    for each in sampled:
        check_numbers(each, range(len(each.entries)))
        ids = [entry.sequence.id for entry in each.entries]
        token_ids, logprobs = read_rows(each)
        samples.token_ids.update(zip(ids, token_ids, strict=True))
        samples.logprobs.update({ids[row]: found for row, found in logprobs.items()})
    return samples


def read_rows(sampled: Sampled) -> tuple[list[int], dict[int, TokenLogprobs]]:
    """Read evaluated samples: the token of each row, and log-probabilities by row if they were asked for."""
    columns = [np.array(column).tolist() for column in sampled.logprobs]
    logprobs = {}
    for (row, num_top), own, top_ids, top in zip(sampled.num_top.items(), *columns, strict=True):
        likeliest = sorted(zip(top_ids, top, strict=True), key=lambda pair: (-pair[1], pair[0]))
        logprobs[row] = TokenLogprobs(own, tuple(likeliest[:num_top]))
    return np.array(sampled.token_ids).tolist(), logprobs


def totals_of(logits: mx.array) -> mx.array:
    """The sum of each row of logits [B, V]: no finite number if one of them is NaN or infinite."""
    return mx.sum(logits if logits.dtype != mx.float16 else logits.astype(mx.float32), axis=-1)


def check_numbers(sampled: Sampled, rows: Iterable[int]) -> None:
    """Raise NoNumbersError if the logits of some rows, by their numbers, hold NaN or infinity.

    The token that was sampled in such a row means nothing. A logit of -inf is a number that says never.
    """
    is_broken = ~(np.array(sampled.totals.astype(mx.float32)) < np.inf)
    if ids := {sampled.entries[row].sequence.id for row in rows if is_broken[row]}:
        raise NoNumbersError(ids)


def logprobs_of(logits: mx.array, token_ids: mx.array, num_top: Mapping[int, int]) -> tuple[mx.array, ...]:
    """Compute `Sampled.logprobs` for the rows in `num_top`, from the model's own logits [B, V]."""
    if not num_top:
        return ()
    rows, V, n = mx.array(list(num_top)), logits.shape[-1], max(num_top.values())
    logprobs = to_logprobs(logits[rows][:, None])  # [R, V]
    own = mx.take_along_axis(logprobs, token_ids[rows][:, None], axis=-1)[:, 0]
    top_ids = mx.argpartition(-logprobs, min(n, V - 1), axis=-1)[:, :n]
    return own, top_ids, mx.take_along_axis(logprobs, top_ids, axis=-1)


def sampler_of(operations: EngineOperations) -> BatchSampler:
    """The sampler of a model's table of operations."""
    return sample_one_by_one if operations.sampler is None else operations.sampler()


def sample_one_by_one(logits: mx.array, batch: SamplingBatch) -> mx.array:
    """Sample with the sampler of day 1.7, one row at a time: [B, V] -> [B]."""
    logprobs = to_logprobs(logits[:, None])
    return mx.concatenate(
        [
            make_sampler(each.temperature, each.top_p, each.top_k, each.min_p, int(number))(
                logprobs[row : row + 1]
            )
            for row, (each, number) in enumerate(zip(batch.params, batch.numbers, strict=True))
        ]
    )


def random_numbers(seeds: npt.NDArray[np.uint64], draws: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return number `draws[i]` of the random stream of `seeds[i]`, without computing the ones before it.

    Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014: SplitMix64.
    """
    return _mix(_mix(seeds) + (draws + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15))


def _mix(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    numbers = (numbers ^ numbers >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ numbers >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return numbers ^ numbers >> np.uint64(31)
