"""What a case of `pdm run compare` is, and how it finds the functions that it calls."""

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import tiny_llm_ref
from accelerated import accelerate  # noqa: F401  on the reference, before it stands on the learner's package
from kernel_runtime.launch import Language, Target, default_target
from scripts.compare.differences import Tree


class Library:
    """A package whose functions and classes are attributes, whatever module they are in.

    So are those of `accelerated`, which stands on one package at a time: as it is imported now.
    """

    def __init__(self, package: ModuleType) -> None:
        self.package = package
        self.accelerated = loaded("accelerated.")

    def __getattr__(self, name: str) -> Any:
        home = home_of(name).replace(tiny_llm_ref.__name__, self.package.__name__, 1)
        return getattr(self.accelerated.get(home) or importlib.import_module(home), name)


def loaded(*prefixes: str) -> dict[str, ModuleType]:
    """The modules whose names begin like that, as far as they are imported."""
    return {name: module for name, module in sys.modules.items() if name.startswith(prefixes)}


THE_REFERENCE = Library(tiny_llm_ref)


@cache
def home_of(name: str) -> str:
    """The module of the reference, of what it stands on or of what stands on it that defines a name.

    Raises:
        AttributeError: there is none, or more than one.
    """
    modules = loaded(f"{tiny_llm_ref.__name__}.", "kernel_runtime.") | THE_REFERENCE.accelerated
    homes = [each for each in modules if getattr(vars(modules[each]).get(name), "__module__", "") == each]
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
        args: what it gets besides the package.
    """

    symbol: str
    name: str
    run: Callable[..., Tree]
    args: tuple[Any, ...] = ()

    def result(self, tiny: Library) -> Tree:
        """What a package computes."""
        return self.run(tiny, *self.args)

    def is_of(self, symbol: str) -> bool:
        """Whether it runs a symbol of course.toml."""
        return f".{symbol}".endswith(f".{self.symbol}")


def gpu_cases(kernel: str, name: str, run: Callable[..., Tree], *args: Any) -> Iterator[Case]:
    """The cases of a kernel in Metal and in CUDA; `run` gets its target before the other arguments."""
    for language in ("metal", "cuda"):
        target = target_of(language)
        place = "emulated" if target.device == "emulator" else "on the GPU"
        yield Case(f"{language}.{kernel}.{kernel}", f"{name}, {place}", run, (target, *args))


def target_of(language: Language) -> Target:
    """This machine's GPU if it runs kernels in the language, else the emulator."""
    own = default_target()
    return own if own.language == language else Target(language, "emulator")
