"""Every finished answer is valid by its JSON schema. `pdm run author schemas` tries many more."""

import pytest

from tests.support.schemas import check_schemas

NUM_SCHEMAS, AT_ONCE = 60, 20


@pytest.mark.usefixtures("on_cpu")
def test_finished_answers_are_valid() -> None:
    num_finished = sum(check_schemas(seed, AT_ONCE) for seed in range(NUM_SCHEMAS // AT_ONCE))
    assert num_finished > 0.9 * NUM_SCHEMAS
