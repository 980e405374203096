"""Which package the name `tiny_llm` means: in a command the reference, unless it is asked for the learner's.

Only what needs both at once names the reference itself: `compare`, and the figures of a run.
"""

import importlib
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

NAME, REFERENCE = "tiny_llm", "tiny_llm_ref"
STAND_ON_IT = ("accelerated", "http_server")
"""Packages that exist once, and take their names from `tiny_llm`."""
MINE, OF_LEARNER = "--mine", "TINY_LLM_MINE"  # an option, and the variable that passes it on
NO_STARTER = (
    "there is no tiny_llm/ here: `git checkout tiny_llm` brings the starter package back, "
    "and --ref tests the reference instead."
)


class ReferenceFinder(MetaPathFinder, Loader):
    """Finds the modules of the reference under the name of the learner's package, each imported once."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        """A spec for the name, and for those below it as long as it means the reference."""
        is_below = fullname.startswith(f"{NAME}.") and sys.modules.get(NAME) is sys.modules.get(REFERENCE)
        return ModuleSpec(fullname, self) if fullname == NAME or is_below else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module itself, not another one made of its source."""
        module = importlib.import_module(REFERENCE + spec.name.removeprefix(NAME))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it is: it knows itself by its own name."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


FINDER = ReferenceFinder()


def choose_package(reference: bool) -> None:
    """Let `tiny_llm`, and what stands on it, mean the reference or the learner's package from now on.

    It comes before the imports that take names from there: what has been imported keeps its meaning.

    Raises:
        ValueError: the learner's package is asked for and is not there.
    """
    if not reference and PathFinder.find_spec(NAME) is None:
        raise ValueError(NO_STARTER)
    if reference != (FINDER in sys.meta_path):
        forget()
        if reference:
            sys.meta_path.insert(0, FINDER)
        else:
            sys.meta_path.remove(FINDER)


def choose_by_environment() -> None:
    """Let `tiny_llm` mean the reference, unless a variable says that it is the learner's package."""
    choose_package(reference=OF_LEARNER not in os.environ)


def known() -> dict[str, ModuleType]:
    """What is imported of the package of that name, and of what stands on it."""
    tops = (NAME, *STAND_ON_IT)
    return {name: module for name, module in sys.modules.items() if name.partition(".")[0] in tops}


def forget() -> None:
    """Let the next import search for the package again, and for what stands on it."""
    for name in known():
        del sys.modules[name]


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Let `tiny_llm` be the package in a folder, and what it was before afterwards."""
    before, finders = known(), list(sys.meta_path)
    forget()
    sys.meta_path[:] = [each for each in finders if each is not FINDER]
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        sys.meta_path[:] = finders
        forget()
        sys.modules.update(before)


def import_package(mine: bool) -> ModuleType:
    """The package that a command works with, imported.

    Raises:
        ValueError: it is the learner's, and is not there.
    """
    choose_package(reference=not mine)
    return importlib.import_module(NAME)


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
