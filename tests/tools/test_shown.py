"""What an error shows: values in any usual form, and none that no docstring speaks of."""

from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

import tiny_llm
from tests.support.check import check_value_error
from tests.support.shown import not_promised, shows

SHAPE = (7, 96)
FORMS: list[tuple[Any, list[str], list[str]]] = [
    (
        SHAPE,
        ["(7, 96)", "[7, 96]", "{7,96}", "7, 96", "7 x 96", "7x96", "7\u00d796", "(7,96)"],
        ["(96, 7)", "17, 96", "7 of 96", "(7, 9, 6)", "7.5, 96"],
    ),
    ((4,), ["(4,)", "[4]", "4 of them"], ["(4.5,)", "14"]),
    ((), ["()", "[]"], ["0"]),
    (64, ["got 64.", "64.0", "n=64", "[1, 64]", "64ms", "6.4e1"], ["640", "164", "-64", "64.5", "float64"]),
    (-1, ["-1", "got \u22121", "-1.0"], ["1", "3-1", "-10"]),
    (10_000, ["10000", "10,000", "10_000"], ["1000", "10,0000", "10 000"]),
    (1128, ["1,128"], ["1, 128"]),
    ((1, 128), ["(1,128)"], ["1128"]),
    (0.1, ["0.1", "0.10", "1e-1"], ["0.12", "10"]),
    (float("nan"), ["got nan", "NaN"], ["none"]),
    (True, ["True"], ["1"]),
    ("abc", ["'abc'", '"abc"', "abc"], ["ab c"]),
    (("a", ""), ["('a', '')", '["a", ""]'], ["a"]),
    (mx.float16, ["mlx.core.float16", "float16"], ["float32"]),
]


@pytest.mark.parametrize(("value", "forms", "others"), FORMS, ids=[repr(value) for value, *_ in FORMS])
def test_a_value_is_found_in_any_usual_form_and_in_no_other(
    value: Any, forms: list[str], others: list[str]
) -> None:
    assert [form for form in forms if not shows(f"so it is {form}: change it", value)] == []
    assert [other for other in others if shows(f"so it is {other}: change it", value)] == []


SOURCE = '''
def refuse(size):
    """Refuse it.

    Args:
        size: as large as `most`.

    Raises:
        ValueError: `size` is too large.
    """
    _refuse(size)

def _refuse(size):
    """Raise a ValueError for `size` and `most`, which nobody reads."""
    raise ValueError(f"{size} is more than 5")

class Box:
    """A box.

    Raises:
        ValueError: `most` is too small.
    """

    def __init__(self, most):
        raise ValueError(f"{most} is too small")
'''


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A module of the reference, which is tested."""
    monkeypatch.setattr(tiny_llm, "__name__", "tiny_llm_ref")
    namespace: dict[str, Any] = {"__name__": "tiny_llm_ref.made_up"}
    exec(SOURCE, namespace)
    return SimpleNamespace(**namespace)


def test_a_value_that_a_docstring_names_may_be_demanded(made_up: SimpleNamespace) -> None:
    with check_value_error(size=9):
        made_up.refuse(9)
    with check_value_error(most=3):
        made_up.Box(3)


def test_a_value_that_no_docstring_names_may_not(made_up: SimpleNamespace) -> None:
    with (
        pytest.raises(pytest.fail.Exception, match="no docstring says that the ValueError shows most"),
        check_value_error(size=9, most=5),
    ):
        made_up.refuse(9)


def test_a_learner_s_docstrings_are_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny_llm, "__name__", "tiny_llm")
    assert not_promised(ValueError("9"), ["size"]) == []
