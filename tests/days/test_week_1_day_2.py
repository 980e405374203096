"""Week 1 day 2: rotary positions, in both pairings, at any offset, and for longer contexts."""

import math
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.rope_utils import initialize_rope

from tests.support.check import check_close, check_equal, check_value_error, normal
from tests.support.oracles import LOW_PRECISION, Array, Mistakes, exact, rotate, rotation_mistakes
from tests.support.oracles import rope_frequencies as exact_frequencies
from tests.support.precision import check_rounded_once, short_types
from tiny_llm import RoPE
from tiny_llm.ops.positional_encoding import LinearScaling, Llama3Scaling, YarnScaling, rope_frequencies

PAIRINGS = pytest.mark.parametrize("traditional", [False, True], ids=["halves", "neighbours"])

# --- task 1 ------------------------------------------------------------------------------------------------


def check_frequencies(actual: mx.array, expected: Array, what: str, mistakes: Mistakes | None = None) -> None:
    """Compare by ratio, since the slowest pair is a million times slower than the fastest."""
    check_close(mx.log(actual), np.log(expected), f"logarithm of {what}", mistakes=mistakes)


def frequency_mistakes(dims: int, base: float) -> Mistakes:
    """Logarithms of what other exponents and bases give."""
    right = np.log(exact_frequencies(dims, base))
    pairs = np.arange(dims // 2)
    return {
        "that of base ** (-i / D): the exponent is -2 i / D": lambda: right / 2,
        "that of base ** (-2 i / (D / 2)): 2 i is divided by D": lambda: right * 2,
        "that of base ** (2 i / D): the exponent is negative": lambda: -right,
        "that of pairs that count from 1": lambda: -np.log(base) * 2 * (pairs + 1) / dims,
        "that of frequencies that reach 1 / base at the last pair": lambda: (
            -np.log(base) * 2 * pairs / max(dims - 2, 1)
        ),
        "that of base 10000": lambda: np.log(exact_frequencies(dims, 10000.0)),
        "that of turns per position: a frequency is in radians": lambda: right - np.log(2 * np.pi),
        "that of frequencies times 2 pi: they are in radians already": lambda: right + np.log(2 * np.pi),
        "that of degrees per position: a frequency is in radians": lambda: right + np.log(180 / np.pi),
    }


@pytest.mark.parametrize(
    ("dims", "base"), [(14, 10000.0), (26, 500_000.0), (128, 1_000_000), (2, 10000), (4, 7)]
)
def test_task_1_frequencies_fall_geometrically(dims: int, base: float) -> None:
    actual = rope_frequencies(dims, base)
    check_equal(actual.shape, (dims // 2,), "shape of the frequencies: one a pair")
    check_equal(actual.dtype, mx.float32, "type of the frequencies")
    check_frequencies(
        actual,
        exact_frequencies(dims, base),
        f"the frequencies of {dims} dims and base {base}",
        frequency_mistakes(dims, base),
    )


# --- task 2 ------------------------------------------------------------------------------------------------

B, L, H, D = 2, 13, 3, 10
SEQ_LEN = 31
BASE = 300.0


def expected_rotation(x: mx.array, positions: Any, traditional: bool, base: float = BASE) -> Array:
    return rotate(exact(x), np.asarray(positions), exact_frequencies(x.shape[-1], base), traditional)


def rotated_wrongly(x: mx.array, positions: Any, traditional: bool) -> Mistakes:
    frequencies = exact_frequencies(x.shape[-1], BASE)
    return {
        **rotation_mistakes(exact(x), positions, frequencies, traditional),
        "x rotated with base 10000": lambda: expected_rotation(x, positions, traditional, 10000.0),
    }


@PAIRINGS
def test_task_2_each_pair_turns_by_its_angle(traditional: bool) -> None:
    x = normal(B, L, H, D, seed=1)
    actual = RoPE(D, SEQ_LEN, BASE, traditional)(x)
    expected = expected_rotation(x, range(L), traditional)
    check_close(actual, expected, "rotated x", mistakes=rotated_wrongly(x, range(L), traditional))


@PAIRINGS
def test_task_2_equals_mlx(traditional: bool) -> None:
    x = normal(B, L, H, D, seed=2)
    actual = RoPE(D, SEQ_LEN, BASE, traditional)(x).swapaxes(1, 2)
    with mx.stream(mx.cpu):
        expected = mx.fast.rope(x.swapaxes(1, 2), D, traditional=traditional, base=BASE, scale=1.0, offset=0)
    check_close(actual, expected, "rotated x as [B, H, L, D]")


@pytest.mark.parametrize("size", [6, 10, 12])
@PAIRINGS
def test_task_2_axes_of_equal_size_are_not_confused(traditional: bool, size: int) -> None:
    x = normal(size, size, size, size, seed=3)
    actual = RoPE(size, size, BASE, traditional)(x)
    expected = expected_rotation(x, range(size), traditional)
    mistakes = rotated_wrongly(x, range(size), traditional)
    check_close(actual, expected, "rotated x whose axes are all alike", mistakes=mistakes)


@PAIRINGS
def test_task_2_a_scaling_brings_frequencies_and_an_amplitude(traditional: bool) -> None:
    x, slower = normal(B, L, H, D, seed=5), exact_frequencies(D, BASE) / 3
    scaling = SimpleNamespace(amplitude=1.25, frequencies=lambda dims, base: mx.array(slower, mx.float32))
    rope = RoPE(D, SEQ_LEN, BASE, traditional)
    expected = 1.25 * rotate(exact(x), np.arange(L), slower, traditional)
    check_close(RoPE(D, SEQ_LEN, BASE, traditional, scaling)(x), expected, "x rotated with a scaling")
    check_close(rope(x), expected_rotation(x, range(L), traditional), "x rotated by one without, made before")


def test_task_2_defaults_are_base_10000_and_halves() -> None:
    x = normal(B, L, H, D, seed=4)
    expected = expected_rotation(x, range(L), False, 10000.0)
    check_close(RoPE(D, SEQ_LEN)(x), expected, "x rotated by RoPE(dims, seq_len)")


@pytest.mark.parametrize(("L", "dims"), [(1, D), (SEQ_LEN, D), (L, 2)])
@PAIRINGS
def test_task_2_from_one_position_to_the_whole_table_and_a_single_pair(
    traditional: bool, L: int, dims: int
) -> None:
    x = normal(B, L, H, dims, seed=9)
    expected = expected_rotation(x, range(L), traditional)
    check_close(RoPE(dims, SEQ_LEN, BASE, traditional)(x), expected, f"x of {dims} dims at {L} positions")


@PAIRINGS
@pytest.mark.parametrize(("dtype", "tolerance"), LOW_PRECISION)
def test_task_2_type_is_kept(dtype: mx.Dtype, tolerance: float, traditional: bool) -> None:
    x = normal(B, L, H, D, seed=11, dtype=dtype)
    actual = RoPE(D, SEQ_LEN, BASE, traditional)(x)
    check_equal(actual.dtype, dtype, "type of the rotated x")
    check_close(actual, expected_rotation(x, range(L), traditional), "rotated x", tolerance)


@PAIRINGS
@short_types
def test_task_2_the_rotated_x_is_rounded_once(dtype: mx.Dtype, traditional: bool) -> None:
    x = normal(B, L, H, D, seed=11, dtype=dtype)
    expected = expected_rotation(x, range(L), traditional)
    check_rounded_once(RoPE(D, SEQ_LEN, BASE, traditional)(x), expected, f"{dtype} x rotated")


@pytest.mark.parametrize(("dtype", "tolerance"), LOW_PRECISION)
def test_task_2_low_precision_does_not_blur_late_positions(dtype: mx.Dtype, tolerance: float) -> None:
    num_positions = 4099  # float16 has no 4098, bfloat16 no 257
    x = normal(1, num_positions, 1, 4, seed=12, dtype=dtype)
    expected = expected_rotation(x, range(num_positions), False, 10000.0)
    check_close(RoPE(4, num_positions)(x), expected, "x rotated at 4099 positions", tolerance)


@pytest.mark.parametrize("dims", [D - 2, D + 2, 2 * D])
def test_task_2_another_head_dimension_is_refused(dims: int) -> None:
    with check_value_error(dims=dims, D=D):
        RoPE(dims, SEQ_LEN)(normal(B, L, H, D, seed=13))


def test_task_2_odd_dims_are_refused() -> None:
    with check_value_error(dims=7):
        RoPE(7, SEQ_LEN)


def test_task_2_more_positions_than_the_table_holds_are_refused() -> None:
    with check_value_error(seq_len=SEQ_LEN):
        RoPE(D, SEQ_LEN)(normal(B, SEQ_LEN + 1, H, D, seed=14))


# --- task 3 ------------------------------------------------------------------------------------------------

FOUR = 4  # vectors to rotate, far from the end of the table


def rotate_four(
    offset: int | slice | list[int] | None, batch_size: int, traditional: bool = False
) -> mx.array:
    return RoPE(D, SEQ_LEN, BASE, traditional)(normal(batch_size, FOUR, H, D, seed=20), offset)


def four_wrongly(first: list[int], batch_size: int, traditional: bool = False) -> Mistakes:
    positions = np.array(first)[:, None] + np.arange(FOUR)
    return rotated_wrongly(normal(batch_size, FOUR, H, D, seed=20), positions, traditional)


def expected_four(first: list[int], batch_size: int, traditional: bool = False) -> Array:
    positions = np.array(first)[:, None] + np.arange(FOUR)
    return expected_rotation(normal(batch_size, FOUR, H, D, seed=20), positions, traditional)


@PAIRINGS
@pytest.mark.parametrize("offset", [17, 0, 1, SEQ_LEN - FOUR])
def test_task_3_one_offset_for_all_rows(offset: int, traditional: bool) -> None:
    actual = rotate_four(offset, 3, traditional)
    expected = expected_four([offset] * 3, 3, traditional)
    mistakes = four_wrongly([offset] * 3, 3, traditional)
    check_close(actual, expected, f"x rotated from {offset=}", mistakes=mistakes)


@PAIRINGS
@pytest.mark.parametrize(
    "offsets", [[5], [3, 17, 0], [9, 2], [7, 7, 7, 7], [3, 12, 0, 8], [1, 0, SEQ_LEN - FOUR, 2, 11]]
)
def test_task_3_one_offset_a_row(offsets: list[int], traditional: bool) -> None:
    actual = rotate_four(offsets, len(offsets), traditional)
    expected = expected_four(offsets, len(offsets), traditional)
    mistakes = four_wrongly(offsets, len(offsets), traditional)
    check_close(actual, expected, f"x rotated from {offsets=}", mistakes=mistakes)


@pytest.mark.parametrize(
    "offset", [slice(0, 4), slice(6, 10), slice(27, SEQ_LEN), slice(4), slice(5, 9, 1), None], ids=str
)
def test_task_3_slice_names_the_positions_and_no_offset_is_zero(offset: slice | None) -> None:
    first = (offset.start or 0) if offset else 0
    expected, mistakes = expected_four([first] * 3, 3), four_wrongly([first] * 3, 3)
    check_close(rotate_four(offset, 3), expected, f"x rotated at {offset}", mistakes=mistakes)


@pytest.mark.parametrize(("dtype", "tolerance"), LOW_PRECISION)
def test_task_3_low_precision_at_a_far_offset(dtype: mx.Dtype, tolerance: float) -> None:
    x = normal(B, FOUR, H, D, seed=23, dtype=dtype)
    actual = RoPE(D, 4099, BASE)(x, [3001, 4095])
    check_equal(actual.dtype, dtype, "type of the rotated x")
    positions = np.array([[3001], [4095]]) + np.arange(FOUR)
    check_close(actual, expected_rotation(x, positions, False), "x rotated from [3001, 4095]", tolerance)


LATE = SEQ_LEN - FOUR + 1
OUTSIDE = [LATE, [0, LATE], [LATE, 0], slice(LATE, LATE + FOUR), 10_000, -1, [0, -1], slice(-4, 0)]


@pytest.mark.parametrize("offset", OUTSIDE, ids=str)
def test_task_3_positions_outside_the_table_are_refused(offset: int | slice | list[int]) -> None:
    with check_value_error(seq_len=SEQ_LEN):
        rotate_four(offset, 2)


@pytest.mark.parametrize("offsets", [[5], [5, 6], [5, 6, 7, 8], []], ids=str)
def test_task_3_one_offset_a_row_and_no_other_number(offsets: list[int]) -> None:
    with check_value_error(**{"len(offset)": len(offsets), "B": 3}):
        rotate_four(offsets, 3)


def test_task_3_no_row_and_no_offset() -> None:
    x = mx.zeros((0, FOUR, 3, D))
    check_equal(RoPE(D, SEQ_LEN, BASE)(x, []).shape, x.shape, "shape of no rows rotated by a list of none")


@pytest.mark.parametrize(
    "offset", [slice(5, 8), slice(5, 10), slice(5, None), slice(4, 12, 2), slice(5, 9, 2)], ids=str
)
def test_task_3_slice_of_other_positions_is_refused(offset: slice) -> None:
    with check_value_error(L=4):
        rotate_four(offset, 2)


# --- task 4 ------------------------------------------------------------------------------------------------

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}


def llama3_frequencies(
    dims: int, base: float, factor: float, low: float, high: float, context: int
) -> tuple[Array, list[str]]:
    """Case by case by wavelength, as in Llama 3.1's code, and which case each pair is."""
    results, cases = [], []
    for frequency in exact_frequencies(dims, base):
        wavelength = 2 * math.pi / frequency
        if wavelength < context / high:
            results.append(frequency)
            cases.append("fast")
        elif wavelength > context / low:
            results.append(frequency / factor)
            cases.append("slow")
        else:
            smooth = (context / wavelength - low) / (high - low)
            results.append((1 - smooth) * frequency / factor + smooth * frequency)
            cases.append("between")
    return np.array(results), cases


@pytest.mark.parametrize("factor", [4.0, 2.5, 0.5])
def test_task_4_linear_divides_the_positions(factor: float) -> None:
    actual, expected = LinearScaling(factor).frequencies(22, 5000.0), exact_frequencies(22, 5000.0) / factor
    check_frequencies(actual, expected, f"the frequencies of linear scaling {factor}")


@pytest.mark.parametrize(
    ("dims", "base", "factor", "low", "high", "context"),
    [
        (64, 10000.0, 8.0, 1.0, 4.0, 512),
        (128, 500_000.0, 32.0, 1.0, 4.0, 8192),
        (62, 10000.0, 3.0, 2.0, 9.0, 700),
    ],
)
def test_task_4_llama3_follows_its_formula(
    dims: int, base: float, factor: float, low: float, high: float, context: int
) -> None:
    expected, cases = llama3_frequencies(dims, base, factor, low, high, context)
    assert set(cases) == {"fast", "slow", "between"}
    actual = Llama3Scaling(factor, low, high, context).frequencies(dims, base)
    check_frequencies(actual, expected, "the frequencies of llama3 scaling")


def yarn_frequencies(
    dims: int,
    base: float,
    factor: float,
    context: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
) -> Array:
    """By pairs, as in the paper's code: find_correction_range, then the ramp."""

    def pair(turns: float) -> float:
        return dims * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair(beta_fast), pair(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    if low == high:
        high += 0.001
    ramp = np.clip((np.arange(dims // 2) - low) / (high - low), 0, 1)
    frequencies = exact_frequencies(dims, base)
    return frequencies / factor * ramp + frequencies * (1 - ramp)


CLOSE_BETAS = {"dims": 64, "base": 10000.0, "factor": 4.0, "context": 2048, "beta_fast": 12, "beta_slow": 11}


@pytest.mark.parametrize(
    "settings",
    [
        {"dims": 64, "base": 10000.0, "factor": 4.0, "context": 2048},
        {"dims": 128, "base": 1_000_000.0, "factor": 4.0, "context": 32768},
        {"dims": 64, "base": 10000.0, "factor": 3.0, "context": 700, "beta_fast": 16.0, "beta_slow": 2.0},
        {"dims": 64, "base": 10000.0, "factor": 4.0, "context": 2048, "truncate": False},
        {"dims": 64, "base": 10000.0, "factor": 4.0, "context": 128},  # pair 0 turns less than 32 times
        {"dims": 10, "base": 7.0, "factor": 4.0, "context": 640},  # the ramp would end at pair 12
        {"dims": 62, "base": 10000.0, "factor": 4.0, "context": 70, "beta_fast": 12.0, "beta_slow": 12.0},
        {**CLOSE_BETAS, "truncate": False},  # from pair 11.5 to 11.8
    ],
    ids=[
        "usual",
        "qwen3",
        "other betas",
        "not truncated",
        "starts before",
        "ends after",
        "no ramp",
        "between two pairs",
    ],
)
def test_task_4_yarn_follows_its_formula(settings: dict[str, Any]) -> None:
    rest = {name: settings[name] for name in ("beta_fast", "beta_slow", "truncate") if name in settings}
    scaling = YarnScaling(settings["factor"], settings["context"], 1.0, **rest)
    actual = scaling.frequencies(settings["dims"], settings["base"])
    check_frequencies(actual, yarn_frequencies(**settings), "the frequencies of yarn scaling")


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.5, 4.0, 40.0])
@pytest.mark.parametrize("mscale", [1.0, 0.7, 0.0])
def test_task_4_yarn_amplitude_grows_with_the_logarithm_of_a_longer_context(
    factor: float, mscale: float
) -> None:
    expected = pytest.approx(1 + mscale * math.log(max(factor, 1.0)) / 10)
    check_equal(YarnScaling.default_amplitude(factor, mscale), expected, f"amplitude of {factor=} {mscale=}")


SCALINGS = {
    "linear": ({"rope_type": "linear", "factor": 2.5}, LinearScaling(2.5)),
    "llama3": ({"rope_type": "llama3", **LLAMA3}, Llama3Scaling(**LLAMA3)),
    "yarn": (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
        YarnScaling(4.0, 512, 1 + math.log(4) / 10),
    ),
}


@PAIRINGS
@pytest.mark.parametrize("base", [10000.0, 500.0])
@pytest.mark.parametrize(("config", "scaling"), SCALINGS.values(), ids=SCALINGS)
def test_task_4_scaled_rotation_equals_mlx_lm(
    config: dict[str, Any], scaling: Any, base: float, traditional: bool
) -> None:
    x = normal(B, L, H, 64, seed=30)
    oracle = initialize_rope(64, base, traditional, config)
    with mx.stream(mx.cpu):
        expected = oracle(x.swapaxes(1, 2), offset=17).swapaxes(1, 2)
    actual = RoPE(64, 600, base, traditional, scaling)(x, 17)
    check_close(actual, expected, f"x rotated with {config['rope_type']} scaling of {base=}", 3e-5)


@pytest.mark.parametrize("scaling", [LinearScaling(4.0), Llama3Scaling(**LLAMA3)], ids=["linear", "llama3"])
def test_task_4_amplitude_is_one_unless_given(scaling: Any) -> None:
    x = normal(B, L, H, D, seed=32)
    rotated = RoPE(D, SEQ_LEN, BASE, scaling=scaling)(x)
    check_close(mx.linalg.norm(rotated, axis=-1), mx.linalg.norm(x, axis=-1), "length of the scaled vectors")


def test_task_4_scaled_vectors_have_the_amplitude_as_factor() -> None:
    x = normal(B, 1, H, D, seed=31)
    rotated = RoPE(D, SEQ_LEN, BASE, scaling=YarnScaling(4.0, 512, 1.25))(x)
    check_close(rotated, 1.25 * exact(x), "x at position 0 with an amplitude of 1.25")
