"""Which package the name `tiny_llm` means."""

import importlib
import importlib.util
import pkgutil
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

MINE, OF_LEARNER = "--mine", "TINY_LLM_MINE"  # an option, and the variable that passes it on
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
    rename("tiny_llm_ref", "tiny_llm")


def use_learners() -> None:
    """Make every module of tiny_llm importable as the same module of tiny_llm_ref, to measure it instead.

    It comes before all imports that take names from there.

    Raises:
        ValueError: the learner's package is not there.
    """
    rename(learners_package().__name__, "tiny_llm_ref")


def rename(package: str, name: str) -> None:
    """Let a name mean a package, with all of its modules."""
    root = importlib.import_module(package)
    sys.modules[name] = root
    for module in pkgutil.walk_packages(root.__path__, f"{package}."):
        alias = name + module.name.removeprefix(package)
        sys.modules[alias] = importlib.import_module(module.name)


def learners_package() -> ModuleType:
    """The learner's package, imported; ValueError if it is not there."""
    choose_package(reference=False)
    return importlib.import_module("tiny_llm")


@contextmanager
def sentences_of(package: ModuleType) -> Iterator[None]:
    """Make one sentence of what is not written yet, and add the learner's line to a ValueError."""
    try:
        yield
    except NotImplementedError as error:
        raise ValueError(f"your package cannot run yet: {error}") from None
    except ValueError as error:
        folder = Path(str(package.__file__)).parent
        places = [
            f" ({Path(frame.filename).relative_to(folder.parent)}:{frame.lineno})"
            for frame in traceback.extract_tb(error.__traceback__)
            if folder in Path(frame.filename).parents
        ]
        raise ValueError(f"{error}{places[-1] if places else ''}") from None
