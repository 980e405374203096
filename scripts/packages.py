"""Which package the name `tiny_llm` means."""

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
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
    """Let `tiny_llm` and the names below it mean the modules of tiny_llm_ref."""
    rename("tiny_llm_ref", "tiny_llm")


def use_learners() -> None:
    """Let `tiny_llm_ref` and the names below it mean the modules of tiny_llm, to measure those instead.

    It comes before all imports that take names from there.

    Raises:
        ValueError: the learner's package is not there.
    """
    rename(learners_package().__name__, "tiny_llm_ref")


def rename(package: str, name: str) -> None:
    """Let a name mean a package, whose modules are each imported once, when asked for by either name."""
    sys.modules[name] = importlib.import_module(package)
    sys.meta_path.insert(0, Renamed(sys.modules[name], name))


class Renamed(MetaPathFinder, Loader):
    """Finds the modules of a package under another name, as long as that name means the package."""

    def __init__(self, package: ModuleType, name: str) -> None:
        self.package, self.name = package, name

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        """A spec for a name below the package's other one."""
        is_below = fullname.startswith(f"{self.name}.") and sys.modules.get(self.name) is self.package
        return ModuleSpec(fullname, self) if is_below else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module itself, not another one made of its source."""
        module = importlib.import_module(self.package.__name__ + spec.name.removeprefix(self.name))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it is: it knows itself by its own name."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


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
