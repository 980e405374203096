"""What holds caches, and lets go of them when a step fails."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TypeVar

Self = TypeVar("Self", bound="Closable")


class Closable(ABC):
    """Closed by `close`, by the end of a `with` block, and by an error or Ctrl-C in what it guards."""

    is_closed = False

    @abstractmethod
    def close(self) -> None:
        """Set `is_closed` and release all that is held."""

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._close_after_error()

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        self._check_open()
        try:
            yield
        except BaseException:
            self._close_after_error()
            raise

    def _close_after_error(self) -> None:
        """Close; an error in that too must not hide the first."""
        with suppress(Exception):
            self.close()

    def _check_open(self) -> None:
        if self.is_closed:
            raise ValueError(f"this {type(self).__name__} is closed: make a new one")
