"""Week 1 day 7: greedy and tempered sampling, the three cuts, seeds and parameters."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from tests.support.check import check_close, check_equal, check_value_error, fail, normal
from tests.support.oracles import Array, exact, expected_kept, log_softmax, softmax
from tiny_llm import SamplingParams, make_sampler
from tiny_llm.generation.sampler import keep_likely, random_keys

V = 11
NUM_DRAWS = 40_000
DISTANCE = 0.02  # total variation that 40,000 draws of 11 tokens stay far below


def logprobs_of(*shape: int, seed: int) -> mx.array:
    """Log-probabilities of random distributions over the last axis."""
    return mx.array(log_softmax(exact(1.5 * normal(*shape, seed=seed))), mx.float32)


def many(logprobs: mx.array) -> mx.array:
    """One distribution [1, V] as a batch of rows."""
    return mx.broadcast_to(logprobs, (NUM_DRAWS, logprobs.shape[-1]))


def check_draws(
    sampler: Any, logprobs: mx.array, expected: Array, what: str, mistakes: Mapping[str, Array] | None = None
) -> mx.array:
    """Compare how often each token is drawn with its probability, in total variation; return the tokens."""
    __tracebackhide__ = True
    drawn: mx.array = sampler(many(logprobs))
    frequencies = np.bincount(np.array(drawn), minlength=len(expected)) / drawn.size
    if distance(frequencies, expected) > DISTANCE:
        token = int(np.abs(frequencies - expected).argmax())
        fail(
            f"{what}: expected token {token} in {expected[token]:.0%} of the draws, "
            f"got it in {frequencies[token]:.0%}",
            cause_of_draws(sampler, logprobs, frequencies, mistakes or {}),
        )
    return drawn


def cause_of_draws(
    sampler: Any, logprobs: mx.array, frequencies: Array, mistakes: Mapping[str, Array]
) -> str | None:
    if frequencies.max() == 1 and len({sampler(logprobs).item() for _ in range(200)}) > 1:
        return "All rows got the same token, another one in each call: make a draw for each row."
    name = min(mistakes, key=lambda name: distance(frequencies, mistakes[name]), default="")
    is_near = name and distance(frequencies, mistakes[name]) <= DISTANCE
    return f"The draws follow {name}." if is_near else None


def distance(first: Array, second: Array) -> float:
    """Total variation of two distributions."""
    return float(np.abs(first - second).sum() / 2)


def temperature_mistakes(logprobs: Array, temp: float) -> dict[str, Array]:
    return {
        "logits multiplied by the temperature, not divided": softmax(logprobs * temp),
        "logits without the temperature": softmax(logprobs),
        "probabilities in place of logits: categorical takes the exp itself": softmax(
            softmax(logprobs / temp)
        ),
        "exp of the logits, with the temperature: categorical takes the exp itself": softmax(
            np.exp(logprobs / temp)
        ),
        "exp of the logits, then the temperature: categorical takes the exp itself": softmax(
            np.exp(logprobs) / temp
        ),
        "argmax: the likeliest token alone": np.eye(len(logprobs))[logprobs.argmax()],
        "chance alone, all tokens equally often": np.full(len(logprobs), 1 / len(logprobs)),
    }


# --- task 1 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("B", [1, 5, V])
def test_task_1_temperature_zero_takes_the_likeliest_of_each_row(B: int) -> None:
    logprobs = logprobs_of(B, V, seed=1)
    tokens = make_sampler(0)(logprobs)
    check_equal(tokens.shape, (B,), "shape of the tokens")
    check_equal(tokens.tolist(), exact(logprobs).argmax(axis=-1).tolist(), "likeliest token of each row")


@pytest.mark.parametrize("cuts", [{"top_k": 3}, {"top_p": 0.4}, {"min_p": 0.5}, {"seed": 3}], ids=str)
def test_task_1_greedy_whatever_else_is_asked(cuts: dict[str, Any]) -> None:
    logprobs = logprobs_of(5, V, seed=3)
    tokens = make_sampler(0, **cuts)(logprobs)
    check_equal(tokens.tolist(), exact(logprobs).argmax(axis=-1).tolist(), f"greedy tokens with {cuts}")


@pytest.mark.parametrize("temp", [0.25, 0.5, 1.0, 2.0, 5.0, 0.01])
def test_task_1_logprobs_are_divided_by_the_temperature(temp: float) -> None:
    logprobs = logprobs_of(1, V, seed=4)
    row = exact(logprobs)[0]
    mistakes = temperature_mistakes(row, temp)
    sampler = make_sampler(temp, seed=5)
    check_draws(sampler, logprobs, softmax(row / temp), f"tokens at temperature {temp}", mistakes)


@pytest.mark.parametrize("temp", [0.08, 0.02])
def test_task_1_a_small_temperature_is_taken_as_it_is(temp: float) -> None:
    logprobs = mx.array(log_softmax(exact(2 * temp * normal(1, V, seed=6))), mx.float32)
    row = exact(logprobs)[0]
    mistakes = {"a temperature of 0.1, the least that is taken": softmax(row / 0.1)}
    what = f"tokens at temperature {temp}, close to each other"
    all_mistakes = {**temperature_mistakes(row, temp), **mistakes}
    check_draws(make_sampler(temp, seed=5), logprobs, softmax(row / temp), what, all_mistakes)


@pytest.mark.parametrize("temp", [1e-3, 1e-7])
def test_task_1_a_small_temperature_still_draws_among_equals(temp: float) -> None:
    logprobs = mx.log(mx.array([[0.1, 0.4, 0.1, 0.4]]))
    drawn = make_sampler(temp, seed=5)(mx.broadcast_to(logprobs, (64, 4)))
    found = sorted(set(drawn.tolist()))
    check_equal(found, [1, 3], f"tokens drawn at temperature {temp}, two equally likely: only 0 is greedy")


def test_task_1_each_row_has_its_own_distribution() -> None:
    wanted = [7, 0, 10, 3, 3]
    logprobs = normal(5, V, seed=7)
    logprobs[mx.arange(5), mx.array(wanted)] = 100.0
    tokens = make_sampler(1.0, seed=5)(logprobs)
    check_equal(tokens.shape, (5,), "shape of the tokens")
    check_equal(tokens.tolist(), wanted, "tokens of rows that are each certain of one")


def test_task_1_rows_are_drawn_independently() -> None:
    """Two rows of one distribution agree as often as two independent draws do."""
    logprobs = logprobs_of(1, V, seed=8)
    drawn = np.array(make_sampler(1.0, seed=5)(many(logprobs))).reshape(-1, 2)
    agreement = (drawn[:, 0] == drawn[:, 1]).mean()
    expected = (softmax(exact(logprobs)[0]) ** 2).sum()
    check_equal(agreement, pytest.approx(expected, abs=0.02), "share of neighbouring rows that agree")


def test_task_1_draws_differ_from_call_to_call() -> None:
    sampler, logprobs = make_sampler(1.0), logprobs_of(100, V, seed=9)
    assert sampler(logprobs).tolist() != sampler(logprobs).tolist(), "two calls drew the same 100 tokens"


def test_task_1_impossible_tokens_are_not_drawn() -> None:
    logprobs = mx.where(mx.arange(V) % 2 == 0, logprobs_of(1, V, seed=10), -mx.inf)
    expected, what = softmax(exact(logprobs)[0] / 3), "tokens at temperature 3, every other one impossible"
    check_draws(make_sampler(3.0, seed=5), logprobs, expected, what)


# --- task 2 ------------------------------------------------------------------------------------------------


def kept_tokens(logprobs: mx.array, top_p: float = 0, top_k: int | None = None, min_p: float = 0) -> Any:
    """Which tokens of each row are kept; those must keep their log-probability, the others be -inf."""
    actual = keep_likely(logprobs, top_p, top_k, min_p)
    check_equal(actual.shape, logprobs.shape, "shape of what is kept")
    kept = np.isfinite(exact(actual))
    check_close(actual, np.where(kept, exact(logprobs), -np.inf), "log-probabilities of the tokens kept")
    return kept


ORDER_AS_RANK = "the order taken for the ranks: entry i of the order is a token, not the rank of token i"


def kept_mistakes(row: Array, kept: list[bool], **cuts: Any) -> dict[str, list[bool]]:
    """What else would be kept of a row by a single cut."""
    order = np.argsort(-row)
    num_kept = sum(kept)
    top_k, top_p, min_p = (cuts.get(name) for name in ("top_k", "top_p", "min_p"))
    mistakes = {}
    if top_k and len(cuts) == 1:
        mistakes["the least likely instead of the likeliest"] = among(row, order[-top_k:])
        mistakes["the first tokens, whatever their probabilities"] = among(row, range(top_k))
        mistakes["one token more than top_k"] = among(row, order[: top_k + 1])
        mistakes[ORDER_AS_RANK] = (order < top_k).tolist()
    if top_p and len(cuts) == 1:
        mistakes["without the token that crosses top_p"] = among(row, order[: num_kept - 1])
        mistakes["what is kept in the order of likelihood: put it back in that of the tokens"] = among(
            row, range(num_kept)
        )
        mistakes["one token more than reach top_p"] = among(row, order[: num_kept + 1])
        mistakes[ORDER_AS_RANK] = (order < num_kept).tolist()
    if min_p and len(cuts) == 1:
        mistakes["min_p as a bound by itself, not relative to the likeliest"] = (
            np.exp(row) >= min_p
        ).tolist()
    return mistakes


def among(row: Array, tokens: Iterable[int]) -> list[bool]:
    chosen = set(map(int, tokens))
    return [token in chosen for token in range(len(row))]


def check_kept(logprobs: mx.array, what: str, **cuts: Any) -> None:
    actual = kept_tokens(logprobs, **cuts)
    for row, expected in enumerate(exact(logprobs)):
        kept = expected_kept(expected, **cuts)
        label = f"{what}, row {row} of the batch"
        check_equal(actual[row].tolist(), kept, label, kept_mistakes(expected, kept, **cuts))


def row_of(*probs: float) -> mx.array:
    return mx.log(mx.array([probs]))


@pytest.mark.parametrize("top_k", [1, 2, 5, V - 1, V, V + 20])
@pytest.mark.parametrize("B", [1, 5])
def test_task_2_top_k_keeps_the_likeliest(B: int, top_k: int) -> None:
    check_kept(logprobs_of(B, V, seed=20), f"tokens kept by {top_k=}", top_k=top_k)


@pytest.mark.parametrize("top_k", [1, 2, 3, 4, 6])
def test_task_2_top_k_keeps_exactly_k_of_equals(top_k: int) -> None:
    kept = kept_tokens(row_of(0.1, 0.2, 0.2, 0.1, 0.2, 0.2), top_k=top_k)[0]
    found = [int(kept.sum()), int(kept[[1, 2, 4, 5]].sum())]
    what = f"number kept by {top_k=} of equally likely tokens, and how many of the four likeliest"
    check_equal(found, [top_k, min(top_k, 4)], what)


@pytest.mark.parametrize("top_p", [0.05, 0.3, 0.5, 0.77, 0.9, 0.999])
@pytest.mark.parametrize("B", [1, 5])
def test_task_2_top_p_keeps_the_fewest_that_reach_it(B: int, top_p: float) -> None:
    check_kept(logprobs_of(B, V, seed=21), f"tokens kept by {top_p=}", top_p=top_p)


PROBS = (0.15, 0.5, 0.05, 0.3)


@pytest.mark.parametrize(
    ("probs", "cuts", "kept"),
    [
        (PROBS, {"top_p": 0.6}, [1, 3]),
        (PROBS, {"top_p": 0.4}, [1]),
        (PROBS, {"top_p": 0.01}, [1]),
        (PROBS, {"top_p": 0.79}, [1, 3]),
        (PROBS, {"top_p": 0.9}, [0, 1, 3]),
        # Renormalized to the two that top_k leaves, the first alone would reach 0.55.
        (PROBS, {"top_p": 0.55, "top_k": 2}, [1, 3]),
        ((0.1, 0.3, 0.3, 0.3), {"min_p": 1.0}, [1, 2, 3]),
    ],
)
def test_task_2_what_is_kept_of_four_tokens(
    probs: tuple[float, ...], cuts: dict[str, Any], kept: list[int]
) -> None:
    actual = kept_tokens(row_of(*probs), **cuts)[0]
    check_equal(np.flatnonzero(actual).tolist(), kept, f"tokens of probabilities {probs} kept by {cuts}")


def test_task_2_top_p_that_is_reached_exactly_needs_no_further_token() -> None:
    logprobs = row_of(0.5, 0.5)
    top_p = min(0.5, float(mx.exp(mx.max(logprobs)).item()))  # some devices round exp(log(0.5)) down
    kept = int(kept_tokens(logprobs, top_p=top_p).sum())
    check_equal(kept, 1, f"number kept by {top_p=} of two tokens of probability 0.5")


@pytest.mark.parametrize("cuts", [{"top_p": 1e-9}, {"top_k": 1}, {"min_p": 1.0}], ids=str)
def test_task_2_at_least_one_token_is_kept(cuts: dict[str, Any]) -> None:
    logprobs = logprobs_of(5, V, seed=22)
    likeliest = exact(logprobs).argmax(axis=-1)
    kept = kept_tokens(logprobs, **cuts)
    check_equal(kept.sum(axis=-1).tolist(), [1] * 5, f"number of tokens kept by {cuts}")
    check_equal(kept.argmax(axis=-1).tolist(), likeliest.tolist(), f"token kept by {cuts}")


def test_task_2_a_certain_token_is_kept() -> None:
    logprobs = mx.where(mx.arange(V) == 4, mx.array([[0.0]]), -mx.inf)
    kept = kept_tokens(logprobs, top_p=0.5, top_k=3, min_p=0.1)[0]
    check_equal(kept.tolist(), [token == 4 for token in range(V)], "what is kept of one certain token")


@pytest.mark.parametrize("min_p", [0.01, 0.1, 0.3, 0.7, 0.95])
@pytest.mark.parametrize("B", [1, 5])
def test_task_2_min_p_is_relative_to_the_likeliest(B: int, min_p: float) -> None:
    check_kept(logprobs_of(B, V, seed=23), f"tokens kept by {min_p=}", min_p=min_p)


@pytest.mark.parametrize("top_p", [0, 1])
def test_task_2_no_cut_keeps_all(top_p: float) -> None:
    logprobs = logprobs_of(5, V, seed=24)
    check_equal(kept_tokens(logprobs, top_p=top_p).all(), True, f"all tokens kept by {top_p=}")


def test_task_2_top_p_of_one_keeps_what_rounding_makes_nothing() -> None:
    logprobs = mx.where(mx.arange(V) == 4, 0.0, normal(1, V, seed=28) - 50)  # token 4 reaches 1 by itself
    check_equal(kept_tokens(logprobs, top_p=1).all(), True, "all tokens kept by top_p=1 beside a certain one")


COMBINATIONS = list(itertools.product([0, 0.5, 0.9], [None, 2, 4], [0, 0.1, 0.4]))


@pytest.mark.parametrize(("top_p", "top_k", "min_p"), COMBINATIONS)
def test_task_2_together_the_cuts_keep_what_each_keeps(top_p: float, top_k: int | None, min_p: float) -> None:
    logprobs = logprobs_of(13, V, seed=25)
    check_kept(logprobs, f"kept by {top_p=} {top_k=} {min_p=}", top_p=top_p, top_k=top_k, min_p=min_p)


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
def test_task_2_cuts_of_a_large_vocabulary(dtype: mx.Dtype) -> None:
    logprobs = logprobs_of(3, 5003, seed=26).astype(dtype)
    actual = kept_tokens(logprobs, top_p=0.9)
    expected = np.array([expected_kept(row, top_p=0.9) for row in exact(logprobs)])
    difference = np.abs(actual.sum(axis=-1) - expected.sum(axis=-1)).max()
    assert difference <= 3, (
        f"top_p=0.9 keeps {actual.sum(axis=-1)} of 5003 tokens, not {expected.sum(axis=-1)}"
    )


CUTS = [{"top_p": 0.6}, {"top_k": 3}, {"min_p": 0.3}, {"top_p": 0.8, "top_k": 5, "min_p": 0.05}]


@pytest.mark.parametrize("temp", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("cuts", CUTS, ids=str)
def test_task_2_cuts_come_before_the_temperature(cuts: dict[str, Any], temp: float) -> None:
    logprobs = logprobs_of(1, V, seed=27)
    row = exact(logprobs)[0]
    kept = np.where(expected_kept(row, **cuts), row, -np.inf)
    tempered = {"": row / temp, ", made to sum to 1 again": log_softmax(row / temp)}
    mistakes = {
        **{
            f"cuts of tempered logits{how}: cut first, then divide by the temperature": softmax(
                np.where(expected_kept(each, **cuts), each, -np.inf)
            )
            for how, each in tempered.items()
        },
        **temperature_mistakes(kept, temp),
    }
    sampler, what = make_sampler(temp, **cuts, seed=5), f"tokens at temperature {temp}, cut by {cuts}"
    drawn = check_draws(sampler, logprobs, expected := softmax(kept / temp), what, mistakes)
    check_equal(set(drawn.tolist()) - set(np.flatnonzero(expected).tolist()), set(), f"drawn despite {cuts}")


# --- task 3 ------------------------------------------------------------------------------------------------

ROWS = 100


def draws(sampler: Any, num_calls: int = 3) -> list[list[int]]:
    logprobs = logprobs_of(ROWS, V, seed=30)
    return [sampler(logprobs).tolist() for _ in range(num_calls)]


@pytest.mark.parametrize("seed", [0, 1, 7, 2**32, 2**64 - 1])
def test_task_3_equal_seeds_make_equal_draws(seed: int) -> None:
    first, second = draws(make_sampler(1.0, seed=seed)), draws(make_sampler(1.0, seed=seed))
    check_equal(second, first, f"draws of a second sampler of {seed=}")


def test_task_3_different_seeds_make_different_draws() -> None:
    all_draws = [str(draws(make_sampler(1.0, seed=seed))) for seed in (0, 1, 2, 2**32, 2**32 + 1)]
    check_equal(len(set(all_draws)), 5, "number of different draws of five seeds")


def test_task_3_a_seeded_sampler_moves_on() -> None:
    first, second, third = draws(make_sampler(1.0, seed=7))
    check_equal(len({str(first), str(second), str(third)}), 3, "number of different draws of three calls")


NUM_KEYS = 1500
RELATED = [7, 8, 9, 6, 7 + 2**32, 8 + 2**32, 7 << 32, 2**64 - 8, 2**63 + 7]


def keys_of(seed: int, count: int) -> list[tuple[int, ...]]:
    """The first keys of a seed."""
    keys = [key for key in itertools.islice(random_keys(seed), count) if key is not None]
    return [tuple(key) for key in mx.stack(keys).tolist()]


def test_task_3_keys_of_a_seed_never_come_again() -> None:
    keys = keys_of(7, NUM_KEYS)
    check_equal(len(set(keys)), NUM_KEYS, f"number of different keys among {NUM_KEYS} of one seed")


def test_task_3_related_seeds_share_no_key() -> None:
    owners: dict[tuple[int, ...], tuple[int, int]] = {}
    for seed in RELATED:
        for draw, key in enumerate(keys_of(seed, 30)):
            other = owners.setdefault(key, (seed, draw))
            if other != (seed, draw):
                fail(f"draw {draw} of seed {seed} has the key of draw {other[1]} of seed {other[0]}")


def test_task_3_a_key_that_is_drawn_with_makes_no_other_key() -> None:
    keys = [mx.random.key(7), *itertools.islice(random_keys(7), 8)]
    made = {tuple(child): i for i, key in enumerate(keys[1:]) for child in mx.random.split(key).tolist()}
    for draw, key in enumerate(keys_of(7, 9)):
        if key in made:
            fail(
                f"the key of draw {draw} is split off the one of draw {made[key]}, which was drawn with.",
                "Split first: one half for the draw, the other for what comes after.",
            )


def test_task_3_the_draws_of_a_seeded_sampler_follow_the_distribution() -> None:
    sampler, logprobs = make_sampler(1.0, seed=7), logprobs_of(1, V, seed=31)
    drawn = mx.concatenate([sampler(logprobs) for _ in range(2000)])
    frequencies = np.bincount(np.array(drawn), minlength=V) / 2000
    found = distance(frequencies, softmax(exact(logprobs)[0]))
    assert found < 0.07, f"2000 calls of one row drew tokens with frequencies {frequencies}"


def test_task_3_a_seeded_sampler_does_not_depend_on_what_else_is_drawn() -> None:
    logprobs = logprobs_of(ROWS, V, seed=30)
    alone = draws(make_sampler(1.0, seed=7))
    sampler, other, between = make_sampler(1.0, seed=7), make_sampler(1.0, seed=8), []
    for call in range(3):
        mx.random.seed(call + 100)
        mx.eval(mx.random.normal((3,)), other(logprobs))
        between.append(sampler(logprobs).tolist())
    check_equal(between, alone, "draws while MLX and another sampler draw too")


def test_task_3_a_seeded_sampler_leaves_the_state_of_mlx_alone() -> None:
    mx.random.seed(5)
    expected = mx.random.normal((7,))
    mx.random.seed(5)
    draws(make_sampler(1.0, seed=7))
    check_close(mx.random.normal((7,)), expected, "what MLX draws after a seeded sampler")


def test_task_3_a_sampler_without_a_seed_takes_its_chance_from_mlx() -> None:
    mx.random.seed(5)
    first, second = draws(make_sampler(1.0)), draws(make_sampler(1.0))
    mx.random.seed(5)
    assert first != second, "two samplers without a seed made the same draws"
    check_equal(draws(make_sampler(1.0)), first, "draws without a seed after mx.random.seed")


OUT_OF_RANGE = {
    "temp": [-0.1, -1, math.nan, math.inf, -math.inf],
    "top_p": [-0.1, 1.01, math.nan, math.inf, 50],
    "top_k": [0, -1],
    "min_p": [-0.1, 1.01, math.nan, math.inf],
    "seed": [-1, 2**64],
}
REFUSED = [(name, value) for name, values in OUT_OF_RANGE.items() for value in values]


@pytest.mark.parametrize(("name", "value"), REFUSED)
@pytest.mark.parametrize("temp", [0.0, 0.7], ids=["greedy", "tempered"])
def test_task_3_an_argument_out_of_its_range_is_refused(name: str, value: float, temp: float) -> None:
    with check_value_error(name=name, value=value):
        make_sampler(**{"temp": temp, name: value})


ENDS = {"temp": (0, 100.0), "top_p": (0, 1), "top_k": (1,), "min_p": (0, 1), "seed": (0,)}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in ENDS for value in ENDS[name]])
def test_task_3_the_ends_of_a_range_are_in_it(name: str, value: float) -> None:
    tokens = make_sampler(**{"temp": 1.0, name: value})(logprobs_of(5, V, seed=32))
    check_equal(tokens.shape, (5,), f"shape of the tokens with {name}={value}")


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_task_3_parameters_out_of_their_range_are_refused(name: str, value: float) -> None:
    with check_value_error(name=name, value=value):
        SamplingParams(**{"temperature" if name == "temp" else name: value})


@pytest.mark.parametrize("max_tokens", [0, -1])
def test_task_3_max_tokens_must_be_positive(max_tokens: int) -> None:
    with check_value_error(name="max_tokens", value=max_tokens):
        SamplingParams(max_tokens=max_tokens)


@pytest.mark.parametrize("stop", ["end", "", ("",), ("a", "")], ids=repr)
def test_task_3_stop_must_be_strings_that_are_not_empty(stop: Any) -> None:
    with check_value_error(name="stop", value=stop):
        SamplingParams(stop=stop)


@pytest.mark.parametrize(
    ("name", "value"), [("presence_penalty", 2.5), ("repetition_penalty", 0), ("min_tokens", -1)]
)
def test_task_3_what_the_engine_adds_is_checked_too(name: str, value: float) -> None:
    with check_value_error(name=name, value=value):
        SamplingParams(**{name: value})


def values_of(params: SamplingParams) -> tuple[Any, ...]:
    return tuple(getattr(params, name) for name in PARAMETERS.replace(" and ", ", ").split(", "))


PARAMETERS = "temperature, top_p, top_k, min_p, seed, max_tokens and stop"


def test_task_3_parameters_are_greedy_and_unbounded_unless_given() -> None:
    expected = (0.0, 0.0, None, 0.0, None, None, ())
    check_equal(values_of(SamplingParams()), expected, f"{PARAMETERS} unless given")


def test_task_3_parameters_are_kept() -> None:
    given = (0.7, 0.9, 3, 0.1, 4, 1, ("a", "bc"))
    check_equal(values_of(SamplingParams(*given)), given, f"{PARAMETERS} as given")


def test_task_3_parameters_cannot_be_changed() -> None:
    params = SamplingParams(temperature=0.7)
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.temperature = -1.0  # type: ignore[misc]


PARAMS = [{"temperature": 0.0}, {"temperature": 3.0}, {"top_p": 0.4}, {"top_k": 2}, {"min_p": 0.4}]


@pytest.mark.parametrize("settings", [*PARAMS, {"top_p": 0.9, "min_p": 0.2}], ids=str)
def test_task_3_parameters_make_their_sampler(settings: dict[str, Any]) -> None:
    settings = {"temperature": 1.0, "seed": 7, **settings}
    cuts = {name: value for name, value in settings.items() if name != "temperature"}
    expected = draws(make_sampler(settings["temperature"], **cuts))
    check_equal(draws(SamplingParams(**settings).make_sampler()), expected, f"draws with {settings}")


def test_task_3_each_sampler_of_the_parameters_starts_anew() -> None:
    params = SamplingParams(temperature=1.0, seed=7)
    first, second = draws(params.make_sampler()), draws(params.make_sampler())
    check_equal(second, first, "draws of the second sampler")
