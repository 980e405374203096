"""How commands fail: one sentence and an exit code, no stack trace."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

USAGE_EXIT_CODE = 2
INTERRUPTED_EXIT_CODE = 130


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn a ValueError about the user's input into its sentence and exit code 2, Ctrl-C into 130."""
    try:
        yield
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(USAGE_EXIT_CODE)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED_EXIT_CODE)
