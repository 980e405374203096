"""The capacity of a server: the highest rate of requests at which users do not wait too long."""

from collections.abc import Callable, Iterator


def poisson_arrivals(rate: float, seconds: float, seed: int) -> Iterator[float]:
    """Yield the times at which independent users send requests.

    Real users do not wait for each other's answers, so neither does this load (an open loop). The gaps
    between arrivals follow an exponential distribution.

    Args:
        rate: mean number of arrivals per second; positive.
        seconds: length of the run; all times are at least 0 and below this.
        seed: of the random numbers.
    """
    raise NotImplementedError("week 3 day 7 task 8: poisson_arrivals is not written yet")


def highest_rate(meets: Callable[[float], bool], low: float, high: float, precision: float = 0.05) -> float:
    """Find the highest rate that a server sustains, by bisection.

    Args:
        meets: whether the server meets its target at a rate. A run at a rate takes minutes, so call this as
            seldom as possible, and never twice for the same rate.
        low: the rate that is tried first; positive.
        high: the rate that is tried second. No higher rate is tried.
        precision: stop when the highest rate that met the target and the lowest that did not differ by at
            most this fraction of the latter.

    Returns:
        The highest rate that was tried and met the target; 0 if `low` did not.
    """
    raise NotImplementedError("week 3 day 7 task 8: highest_rate is not written yet")
