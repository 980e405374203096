"""One suite for two packages: the tests import `tiny_llm`, and --ref makes that name mean the reference."""

import importlib
import pkgutil
import sys

import pytest
from hypothesis import settings

from scripts.test import NO_STARTER

settings.register_profile("course", deadline=None, derandomize=True, print_blob=False)
settings.load_profile("course")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--ref", action="store_true", help="test tiny_llm_ref, the reference")
    parser.addoption("--task", type=int, help="only the tests of this task of a day")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--ref"):
        use_reference()
    elif importlib.util.find_spec("tiny_llm") is None:
        raise pytest.UsageError(NO_STARTER)


def use_reference() -> None:
    reference = importlib.import_module("tiny_llm_ref")
    sys.modules["tiny_llm"] = reference
    for module in pkgutil.walk_packages(reference.__path__, "tiny_llm_ref."):
        alias = module.name.replace("tiny_llm_ref", "tiny_llm", 1)
        sys.modules[alias] = importlib.import_module(module.name)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    task = config.getoption("--task")
    if task is None:
        return
    chosen = [item for item in items if item.name.startswith(f"test_task_{task}_")]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen
