"""A plugin that leaves out most tests marked `sampled` that no change concerns: other ones at each commit."""

from collections.abc import Collection

import pytest

from scripts.bank.chosen import changed_files, git, is_drawn
from scripts.course import ROOT

CHANGED = pytest.StashKey[set[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Ask for the commit that the checked out one is compared with."""
    parser.addoption("--since", metavar="COMMIT", help="leave out what no change since COMMIT concerns")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a commit that git does not know."""
    try:
        config.stash[CHANGED] = changed_files(config.getoption("--since"))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take away what this commit leaves out, and tell pytest."""
    changed, head = config.stash[CHANGED], git("rev-parse", "HEAD").strip()
    left_out = [item for item in items if not is_taken(item, changed, head)]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def is_taken(item: pytest.Item, changed: Collection[str], head: str) -> bool:
    """Whether a commit runs a test. A marked module, perhaps for its fixtures, is drawn as a whole."""
    for node, mark in item.iter_markers_with_node("sampled"):
        share, *concern = mark.args
        if item.path.is_relative_to(ROOT):
            concern.append(item.path.relative_to(ROOT).as_posix())
        is_concerned = any(path.startswith(tuple(concern)) for path in changed)
        return is_concerned or is_drawn(node.nodeid, head, share)
    return True
