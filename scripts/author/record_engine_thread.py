"""What the engine's thread does when clients hang up and steps fail: every case of the book's figure."""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from scripts.checkpoints.files import SHIPPED_MODEL
from scripts.checkpoints.models import load_by_name
from tiny_llm import BlockManager, Engine, SamplingParams, SchedulerConfig, SchedulerOutput
from tiny_llm.generation.generate import encode_prompt
from tiny_llm.server.engine_thread import EngineThread
from tiny_llm.server.mailbox import Report, StepReport, Stopped

PROMPTS = (
    "In the beginning God created the heaven and the",
    "And Jesus answered and said",
    "And the LORD spake",
)
MOST_TOKENS = (7, 6, 5)
LATE = 2  # comes after the first step
GONE = 1  # whose client may hang up
BUDGET, MAX_NUM_SEQS, NUM_BLOCKS, BLOCK_SIZE = 8, 3, 24, 4
NUM_STEPS = 8
TIMEOUT = 60  # seconds
NO_FAULT = "none"


class StepFailureError(RuntimeError):
    """What a step raises that was told to fail."""


@dataclass(frozen=True)
class Case:
    """What goes wrong.

    Attributes:
        fault: "none"; "step-3", whose fourth step fails, once; or "request-1", which fails each step that
            computes its second token.
        gone: number of reports after which the client hangs up; 0 for never.
    """

    fault: str
    gone: int

    def fails(self, number: int, output: SchedulerOutput) -> bool:
        """Whether the step of this number must fail."""
        kind, _, value = self.fault.partition("-")
        if kind == "step":
            return number == int(value)
        return kind == "request" and any(
            entry.sequence.id == int(value) and entry.end > entry.sequence.num_prompt_tokens + 1
            for entry in output.entries
        )


def cases() -> Iterator[Case]:
    """All that the figure offers."""
    faults = [
        NO_FAULT,
        *(f"step-{number}" for number in range(NUM_STEPS)),
        *(f"request-{number}" for number in range(len(PROMPTS))),
    ]
    return (Case(fault, gone) for fault, gone in product(faults, range(NUM_STEPS)))


class Recording:
    """A run of an engine thread: what it was told, what each step computed and what was reported.

    Args:
        case: what goes wrong.
        prompts: token ids of each request.
    """

    def __init__(self, case: Case, prompts: list[tuple[int, ...]]) -> None:
        self.case = case
        self.prompts = prompts
        self.steps: list[dict[str, Any]] = []
        self.commands: list[str] = []
        self.unfinished: set[int] = set()
        self.error: str | None = None
        self.num_reports = 0
        self.thread = EngineThread(self.make_engine, self.post)

    def run(self) -> list[dict[str, Any]]:
        """Run the thread until nothing is left to do."""
        for ticket in range(len(self.prompts)):
            if ticket != LATE:
                self.submit(ticket)
        self.thread.start()
        if not self.thread.join(TIMEOUT) or self.error:
            raise ValueError(f"the engine's thread did not end well: {self.error}")
        return self.steps

    def submit(self, ticket: int) -> None:
        """Send a request down."""
        self.commands.append(f"+{ticket}")
        self.unfinished.add(ticket)
        params = SamplingParams(max_tokens=MOST_TOKENS[ticket])
        self.thread.submit(ticket, self.prompts[ticket], params)

    def make_engine(self) -> Engine:
        """An engine whose steps fail when the case says so, after the model has run."""
        blocks = BlockManager(NUM_BLOCKS, BLOCK_SIZE)
        engine = Engine(*load_by_name(SHIPPED_MODEL), SchedulerConfig(BUDGET, MAX_NUM_SEQS), blocks=blocks)
        run: Callable[..., Any] = engine.runner.run

        def run_or_fail(output: SchedulerOutput, params: Mapping[int, SamplingParams]) -> Any:
            samples = run(output, params)
            is_failed = self.case.fails(len(self.steps), output)
            rows = [
                [entry.sequence.id, entry.start, entry.num_tokens, int(entry.is_final)]
                for entry in output.entries
            ]
            self.steps.append({"down": self.commands, "rows": rows, "ok": int(not is_failed)})
            self.commands = []
            if is_failed:
                raise StepFailureError("told to fail")
            return samples

        engine.runner.run = run_or_fail  # type: ignore[method-assign]
        return engine

    def post(self, report: Report) -> None:
        """What the event loop does with a report, at once: the next step sees it."""
        if isinstance(report, Stopped):
            self.error = report.error
        if not isinstance(report, StepReport):
            return
        up = [[each.ticket, each.text, each.finish_reason] for each in report.increments]
        failed = sorted(report.failed)
        self.steps[-1] |= {"up": up, "failed": failed, "used": report.stats.num_used_blocks}
        self.unfinished -= {each.ticket for each in report.increments if each.finish_reason} | set(failed)
        self.num_reports += 1
        if self.num_reports == 1:
            self.submit(LATE)
        if self.num_reports == self.case.gone and GONE in self.unfinished:
            self.commands.append(f"-{GONE}")
            self.unfinished.discard(GONE)
            self.thread.abort(GONE)
        if not self.unfinished:
            self.thread.stop()


def record_case(case: Case) -> list[dict[str, Any]]:
    """The steps of one case."""
    tokenizer = load_by_name(SHIPPED_MODEL)[1]
    return Recording(case, [tuple(encode_prompt(tokenizer, prompt)) for prompt in PROMPTS]).run()


def record_engine_thread(command: str, machine: str) -> dict[str, Any]:
    """All cases, each under what goes wrong; equal runs are kept once."""
    logging.getLogger("tiny_llm.server").setLevel(logging.ERROR)  # the failures are meant
    tokenizer = load_by_name(SHIPPED_MODEL)[1]
    prompts = [tuple(encode_prompt(tokenizer, prompt)) for prompt in PROMPTS]
    runs: list[list[dict[str, Any]]] = []
    number_of: dict[str, int] = {}
    for case in cases():
        steps = Recording(case, prompts).run()
        if steps not in runs:
            runs.append(steps)
        number_of[f"{case.fault}/{case.gone}"] = runs.index(steps)
    return {
        "command": command,
        "machine": machine,
        "requests": [
            {"prompt": text, "tokens": len(ids), "most": most}
            for text, ids, most in zip(PROMPTS, prompts, MOST_TOKENS, strict=True)
        ],
        "blocks": NUM_BLOCKS,
        "numSteps": NUM_STEPS,
        "gone": GONE,
        "cases": number_of,
        "runs": runs,
    }
