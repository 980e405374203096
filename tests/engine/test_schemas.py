"""Every finished answer is valid by its JSON schema. `pdm run author schemas` tries many more."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.schemas import check_schemas

AT_ONCE = 20


@pytest.mark.usefixtures("on_cpu")
@settings(max_examples=3)
@given(seed=st.integers(0, 2**32))
def test_finished_answers_are_valid(seed: int) -> None:
    assert check_schemas(seed, AT_ONCE) > 0.7 * AT_ONCE
