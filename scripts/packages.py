"""Which package the name `tiny_llm` means."""

import importlib
import importlib.util
import pkgutil
import sys

NO_STARTER = (
    "there is no tiny_llm/ here: `git checkout tiny_llm` brings the starter package back, "
    "and --ref tests the reference instead."
)


def choose_package(reference: bool) -> None:
    """Let `tiny_llm` be the learner's package, or the reference under that name.

    Raises:
        ValueError: the learner's package is asked for and is not there.
    """
    if reference:
        use_reference()
    elif importlib.util.find_spec("tiny_llm") is None:
        raise ValueError(NO_STARTER)


def use_reference() -> None:
    """Make every module of tiny_llm_ref importable as the same module of tiny_llm."""
    package = importlib.import_module("tiny_llm_ref")
    sys.modules["tiny_llm"] = package
    for module in pkgutil.walk_packages(package.__path__, "tiny_llm_ref."):
        alias = module.name.replace("tiny_llm_ref", "tiny_llm", 1)
        sys.modules[alias] = importlib.import_module(module.name)
