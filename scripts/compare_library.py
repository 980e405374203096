"""What a case of `pdm run compare` is, and how it finds the functions that it calls."""

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from types import ModuleType
from typing import Any

import tiny_llm_ref
from scripts.compare_trees import Tree as Tree


class Library:
    """A package whose functions and classes are attributes, whatever module they are in."""

    def __init__(self, package: ModuleType) -> None:
        self.package = package

    def __getattr__(self, name: str) -> Any:
        home = home_of(name).replace(tiny_llm_ref.__name__, self.package.__name__, 1)
        return getattr(importlib.import_module(home), name)


@cache
def home_of(name: str) -> str:
    """The module of the reference, or of what it stands on, that defines a function or class."""
    modules = [
        each for each in sys.modules if each.startswith((f"{tiny_llm_ref.__name__}.", "kernel_runtime."))
    ]
    homes = [
        each for each in modules if getattr(vars(sys.modules[each]).get(name), "__module__", None) == each
    ]
    if len(homes) != 1:
        raise AttributeError(f"{len(homes)} modules of the reference define {name}: {', '.join(homes)}")
    return homes[0]


Run = Callable[[Library], Tree]
RunOnTarget = Callable[[Library, Tree], Tree]


@dataclass(frozen=True)
class Case:
    """One row of the comparison.

    Args:
        symbol: the end of a name in course.toml; of several that end so it is the shortest.
        name: what the learner reads, in fewer than 24 characters.
        run: computes something with the symbol by either package. All of it is timed, so it takes
            milliseconds, and what it needs beside the symbol is made once.
    """

    symbol: str
    name: str
    run: Run


def gpu_cases(kernel: str, name: str, run: RunOnTarget) -> Iterator[Case]:
    """The cases of a kernel in Metal and in CUDA, each on this machine's GPU or else on the emulator."""
    for language in ("metal", "cuda"):
        device = target_of(language, Library(tiny_llm_ref)).device
        place = "emulated" if device == "emulator" else "on the GPU"
        yield Case(f"{language}.{kernel}.{kernel}", f"{name}, {place}", partial(run_on_target, run, language))


def run_on_target(run: RunOnTarget, language: str, tiny: Library) -> Tree:
    """A case of a kernel in that language."""
    return run(tiny, target_of(language, tiny))


def target_of(language: str, tiny: Library) -> Tree:
    """This machine's GPU if it runs kernels in the language, else the emulator."""
    own = tiny.default_target()
    return own if own.language == language else replace(own, language=language, device="emulator")
