"""Capacity: arrivals that don't wait for answers, and a search that runs the server as seldom as it can."""

import numpy as np
import pytest

from tiny_llm.server.capacity import highest_rate, poisson_arrivals


def test_arrivals_are_poisson() -> None:
    times = np.array(list(poisson_arrivals(rate=50, seconds=200, seed=1)))
    gaps = np.diff(times)
    assert times[-1] < 200
    assert len(times) == pytest.approx(10_000, rel=0.03)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.03)
    assert list(poisson_arrivals(50, 200, 1)) == times.tolist()


@pytest.mark.parametrize("capacity", [0.5, 1, 3.3, 7, 99.9, 100, 400])
def test_highest_rate(capacity: float) -> None:
    tried: list[float] = []

    def meets(rate: float) -> bool:
        tried.append(rate)
        return rate <= capacity

    found = highest_rate(meets, 1, 100, precision=0.05)
    assert len(tried) == len(set(tried)) <= 11
    if capacity < 1:
        assert (found, tried) == (0, [1])
    else:
        assert found <= capacity
        assert min(capacity, 100) * 0.95 <= found
