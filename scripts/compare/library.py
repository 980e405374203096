"""What a case of `pdm run compare` is, and how it finds the functions that it calls."""

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from types import ModuleType
from typing import Any

import tiny_llm_ref
from scripts.compare.differences import Tree


class Library:
    """A package whose functions and classes are attributes, whatever module they are in."""

    def __init__(self, package: ModuleType) -> None:
        self.package = package

    def __getattr__(self, name: str) -> Any:
        home = home_of(name).replace(tiny_llm_ref.__name__, self.package.__name__, 1)
        return getattr(importlib.import_module(home), name)


@cache
def home_of(name: str) -> str:
    """The module of the reference, or of what it stands on, that defines a function or class.

    Raises:
        AttributeError: there is none, or more than one.
    """
    prefixes = (f"{tiny_llm_ref.__name__}.", "kernel_runtime.")
    modules = {each: vars(module) for each, module in sys.modules.items() if each.startswith(prefixes)}
    homes = [each for each, names in modules.items() if getattr(names.get(name), "__module__", "") == each]
    if len(homes) != 1:
        raise AttributeError(f"{len(homes)} modules of the reference define {name}: {', '.join(homes)}")
    return homes[0]


@dataclass(frozen=True)
class Case:
    """One row of the comparison.

    Args:
        symbol: the end of a name in course.toml, as long as it takes to mean one alone.
        name: what the learner reads, in fewer than 24 characters.
        run: computes something with the symbol by either package. All of it is timed, so it takes
            milliseconds, and what it needs beside the symbol is made once.
    """

    symbol: str
    name: str
    run: Callable[[Library], Tree]

    def is_of(self, symbol: str) -> bool:
        """Whether it runs a symbol of course.toml."""
        return f".{symbol}".endswith(f".{self.symbol}")


def gpu_cases(kernel: str, name: str, run: Callable[[Library, Tree], Tree]) -> Iterator[Case]:
    """The cases of a kernel in Metal and in CUDA, each on this machine's GPU or else on the emulator."""
    for language in ("metal", "cuda"):

        def target(tiny: Library, language: str = language) -> Tree:
            own = tiny.default_target()
            return own if own.language == language else replace(own, language=language, device="emulator")

        def run_there(tiny: Library, target: Callable[[Library], Tree] = target) -> Tree:
            return run(tiny, target(tiny))

        place = "emulated" if target(Library(tiny_llm_ref)).device == "emulator" else "on the GPU"
        yield Case(f"{language}.{kernel}.{kernel}", f"{name}, {place}", run_there)
