"""What closes itself after an error tells of that error, whatever happens while it closes."""

import pytest

from kernel_runtime.closable import Closable


class Stuck(Closable):
    """Cannot release what it holds."""

    def close(self) -> None:
        self.is_closed = True
        raise ValueError("nothing can be released")

    def fail(self, failure: type[BaseException]) -> None:
        with self._closed_on_error():
            raise failure("the first")


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_the_first_error_is_the_one_that_comes(failure: type[BaseException]) -> None:
    stuck = Stuck()
    with pytest.raises(failure, match="the first"):
        stuck.fail(failure)
    assert stuck.is_closed
    with pytest.raises(failure, match="the first"), Stuck():
        raise failure("the first")


def test_an_error_of_closing_alone_is_not_hidden() -> None:
    with pytest.raises(ValueError, match="nothing can be released"), Stuck():
        pass
