"""The exhibits: a wrong solution each, what a user says of it, and the run that shows it."""

import functools
import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches, unified_diff

from scripts.bank.entries import THREAD, Solution, load_bank, read_package
from scripts.course import load_course
from scripts.sources.symbols import Package

DOCSTRING = re.compile(r'^ +""".*?"""\n', re.M | re.S)


@dataclass(frozen=True)
class Exhibit:
    """A bug that got into production.

    Args:
        name: what the command calls it.
        solution_id: of the wrong solution that is like it, which has the link of the report.
        report: what a user says.
        module: of `scripts.museum`, with a function of the exhibit's name that shows the bug.
    """

    name: str
    solution_id: str
    report: str
    module: str

    @property
    def solution(self) -> Solution:
        """The wrong solution."""
        week, day, _ = self.solution_id.split(" ")[0].split(".")
        bank = load_bank([load_course().day(int(week), int(day))])
        return next(each for each in bank if each.id == self.solution_id)

    @property
    def link_text(self) -> str:
        """The report as people cite it, such as `vllm-project/vllm #51226`."""
        match = THREAD.fullmatch(self.solution.seen_in)
        assert match is not None
        return f"{match[1]} #{match[2]}"

    @property
    def fault(self) -> list[str]:
        """The lines of the difference between the reference and the wrong solution."""
        symbol = reference().find(self.solution.symbol)
        before, after = (
            DOCSTRING.sub("", code, count=1).splitlines()
            for code in (symbol.code, self.solution.edit.code(symbol))
        )
        lines = unified_diff(before, after, n=2, lineterm="")
        return [line for line in lines if not line.startswith(("---", "+++", "@@"))]

    @property
    def scene(self) -> Callable[[], str]:
        """Run the package that `tiny_llm` means, and return what a user sees."""
        module = importlib.import_module(f"scripts.museum.{self.module}")
        scene: Callable[[], str] = getattr(module, self.name.replace("-", "_"))
        return scene


EXHIBITS = tuple(
    Exhibit(*words)
    for words in (
        (
            "pairs",
            "1.2.2 other-pairing",
            "I converted the checkpoint myself. The first words are fine, then it falls apart.",
            "model_scenes",
        ),
        (
            "corner",
            "1.3.1 queries-are-the-first-positions",
            "The first token is right. From the second one on, the model has forgotten my prompt.",
            "model_scenes",
        ),
        (
            "emoji",
            "1.6.2 nothing-held-back",
            "English is fine. Accents and emoji come out as question marks.",
            "model_scenes",
        ),
        (
            "seed",
            "1.7.3 seeds-mlx-when-made",
            "I send a seed, and still get another answer when someone else is on the server.",
            "model_scenes",
        ),
        (
            "zeros",
            "2.2.2 division-by-zero",
            "I quantized a checkpoint that has a pruned row. Now every answer is empty.",
            "model_scenes",
        ),
        (
            "padding",
            "2.6.2 no-mask-for-one-token",
            "My short prompt gets another answer when a long one is in the same batch.",
            "model_scenes",
        ),
        (
            "chunks",
            "2.7.2 prompt-head-again",
            "Short prompts are fine. With a long one, the model seems to have read only the beginning.",
            "model_scenes",
        ),
        (
            "full-hit",
            "3.4.6 whole-prompt-hit",
            "I sent the same prompt again, and the engine crashed.",
            "engine_scenes",
        ),
        (
            "collision",
            "3.4.1 hash-trusted",
            "Once in a while, someone gets an answer to a prompt that isn't theirs.",
            "engine_scenes",
        ),
        (
            "evicted",
            "3.4.4 still-found",
            "The first time it answers well. An hour later, the same prompt gets nonsense.",
            "engine_scenes",
        ),
        (
            "preempted",
            "3.5.1 answer-thrown-away",
            "Under load, some answers begin a second time in the middle.",
            "engine_scenes",
        ),
        (
            "hole",
            "3.6.7 as-far-as-the-engine",
            "All answers are right, but the draft model guesses worse than it did last week.",
            "engine_scenes",
        ),
        (
            "stop",
            "3.7.1 only-complete-strings",
            "My client gets the beginning of the stop string, though it asked never to see it.",
            "server_scenes",
        ),
        (
            "logprobs",
            "3.7.2 logprobs-from-the-start",
            "In a stream, every token has the log-probability of the first one.",
            "server_scenes",
        ),
        (
            "burst",
            "3.7.5 reserved-after-the-check",
            "I set a limit on the queue. When many arrive at once, all of them get in.",
            "server_scenes",
        ),
        (
            "gone",
            "3.7.6 no-watcher",
            "I press Ctrl-C in the client, and the server goes on computing for minutes.",
            "server_scenes",
        ),
        (
            "router",
            "4.2.1 softmax-of-the-chosen",
            "The mixture of experts starts well, then drifts away from the subject.",
            "model_scenes",
        ),
    )
)


@functools.cache
def reference() -> Package:
    """The reference, read once."""
    return read_package()


def find_exhibit(name: str) -> Exhibit:
    """The exhibit of a name.

    Raises:
        ValueError: there is none.
    """
    names = {each.name: each for each in EXHIBITS}
    if name not in names:
        close = get_close_matches(name, names)
        advice = f"did you mean {' or '.join(close)}?" if close else "`pdm run museum` lists them"
        raise ValueError(f"there is no exhibit {name!r}: {advice}")
    return names[name]
