"""The options and servers of the tests with clients nobody here wrote."""

from collections.abc import Iterator
from pathlib import Path

import pytest

NUM_CASES = 50


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cases", type=int, default=NUM_CASES, help="random requests of schemathesis, at least")
    parser.addoption("--seed", type=int, default=1, help="what they are drawn with")


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """The address of a server."""
    from tests.clients.serving import serving  # only after the package

    with serving() as url:
        yield url


@pytest.fixture(scope="session")
def url_of_short_answers() -> Iterator[str]:
    """The address of a server whose requests have at most 64 tokens."""
    from tests.clients.serving import serving

    with serving(64) as url:
        yield url


@pytest.fixture(scope="session")
def node_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the clients for Node.js."""
    from tests.clients.node import install

    folder = tmp_path_factory.mktemp("js")
    install(folder)
    return folder
