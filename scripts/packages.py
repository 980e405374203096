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
        raise ValueError(f"your package cannot serve yet: {error}") from None
    except ValueError as error:
        folder = Path(str(package.__file__)).parent
        places = [
            f" ({Path(frame.filename).relative_to(folder.parent)}:{frame.lineno})"
            for frame in traceback.extract_tb(error.__traceback__)
            if folder in Path(frame.filename).parents
        ]
        raise ValueError(f"{error}{places[-1] if places else ''}") from None
