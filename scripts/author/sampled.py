"""A plugin that leaves out most tests marked `sampled`: other ones for each commit that is checked out."""

import pytest

from scripts.author.bank.chosen import git, is_drawn


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take away what this commit leaves out, and tell pytest."""
    head = git("rev-parse", "HEAD").strip()
    left_out = [item for item in items if not is_taken(item, head)]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def is_taken(item: pytest.Item, head: str) -> bool:
    """Whether a commit runs a test. A marked module, perhaps for its fixtures, is drawn as a whole."""
    for node, mark in item.iter_markers_with_node("sampled"):
        return is_drawn(node.nodeid, head, *mark.args)
    return True
