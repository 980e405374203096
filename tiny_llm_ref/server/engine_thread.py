"""The thread that owns the engine: it alone creates, evaluates and frees arrays."""

import gc
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue

import mlx.core as mx

from ..engine.engine import Engine
from ..engine.engine_request import EngineRequest
from ..generation.sampler import SamplingParams
from ..scheduling.scheduler_output import SchedulerOutput
from .engine_meter import EngineMeter, drafts_of, rows_of
from .mailbox import Abort, Command, Increment, Loaded, Report, StepReport, Stop, Stopped, Submit
from .recovery import RecoveringEngine, ServedStep
from .text_increments import TextIncrements
from .thread_end import join_native
from .thread_law import explained


@dataclass
class LiveRequest:
    """An unfinished request in the engine's thread.

    Attributes:
        ticket: the sender's number for it.
        request: its sequence and its answer.
        text: turns its tokens into text.
        num_sent: number of tokens of the answer that have been reported.
        is_started: whether it has been scheduled yet.
    """

    ticket: int
    request: EngineRequest
    text: TextIncrements
    num_sent: int = 0
    is_started: bool = False

    def increment(self) -> Increment:
        """Return what the answer has gained since the last call: tokens, text and log-probabilities.

        At the end of the answer, that includes the text that was held back.
        """
        request, start = self.request, self.num_sent
        new = tuple(request.token_ids[start:])
        text = "".join([self.text.add(token) for token in new])
        if request.is_done:
            text += self.text.finish()
        self.num_sent += len(new)
        return Increment(self.ticket, new, text, tuple(request.logprobs[start:]), request.finish_reason)


class EngineThread:
    """Run an engine in its own thread. Commands go in through a queue, and one report comes out per step.

    An MLX array can be evaluated only in the thread that made it. So this thread makes the engine, runs its
    steps and frees it, and only text and numbers leave it. `start`, `submit`, `abort`, `stop` and `join` are
    for other threads, and all else is for this one. Only `join` waits for a step.

    Args:
        make_engine: loads a model and makes an engine; called in the thread, and again after a failed step.
        post: takes a report; called in the thread. It must hand the report over and return at once. The first
            report is `Loaded` and the last one `Stopped`. In between, there is one `StepReport` per step.

    Attributes:
        commands: what other threads want done, in order.
        live: the unfinished requests, by the engine's id.
        id_of: the engine's id of each, by ticket.
        refused: why the engine did not take a request, by ticket; goes into the next report.
    """

    def __init__(self, make_engine: Callable[[], Engine], post: Callable[[Report], None]) -> None:
        self.make_engine = make_engine
        self.post = post
        self.commands: SimpleQueue[Command] = SimpleQueue()
        self._thread = threading.Thread(target=self.run, name="engine", daemon=True)
        self.live: dict[int, LiveRequest] = {}
        self.id_of: dict[int, int] = {}
        self.refused: dict[int, str] = {}
        self._meter = EngineMeter()

    def start(self) -> None:
        """Start the thread, which then loads the model."""
        self._thread.start()

    def submit(
        self, ticket: int, prompt_ids: tuple[int, ...], params: SamplingParams, priority: int = 0
    ) -> None:
        """Add a request before the next step. Reports about it carry the ticket.

        Args:
            ticket: a number that no other request has had.
            prompt_ids, params, priority: as for `Engine.add_request`.
        """
        self.commands.put(Submit(ticket, prompt_ids, params, priority))

    def abort(self, ticket: int) -> None:
        """Drop a request before the next step, and release what it holds. No report mentions it then."""
        self.commands.put(Abort(ticket))

    def stop(self) -> None:
        """Let the thread drop all requests before the next step, free everything and end."""
        self.commands.put(Stop())

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the thread has ended, at most `timeout` seconds. Return whether it has."""
        return join_native(self._thread, timeout)

    def run(self) -> None:
        """Make the engine, post `loaded` of it, and serve until `stop`; the body of the thread.

        However it ends, even by SystemExit or KeyboardInterrupt, the engine is closed, then `end_streams` is
        called, and the last report is `Stopped`, with the first error `explained` (in `thread_law`). Post it
        even if `end_streams` fails, as it does after an error of the device. So no one waits for an answer
        forever.
        """
        error: str | None = None
        try:
            with RecoveringEngine(self.make_engine) as engine:
                self.post(loaded(engine.engine))
                keep_from_collector()
                self.serve(engine)
        except BaseException as exception:
            error = explained(exception)
        try:
            end_streams()
        except BaseException as exception:
            error = error or explained(exception)
        self.post(Stopped(error))

    def serve(self, engine: RecoveringEngine) -> None:
        """Take commands and compute steps in turn, until `stop`. Post a report per step.

        There may be nothing to compute, but refused requests to report.
        """
        while self.take_commands(engine):
            if engine.has_unfinished_requests or self.refused:
                self.post(self.compute(engine))

    def take_commands(self, engine: RecoveringEngine) -> bool:
        """Carry out all commands that have arrived, in order. If there is nothing to compute, wait for one.

        Returns:
            Whether to go on: False at a `Stop`.
        """
        try:
            command = self.commands.get(block=not engine.has_unfinished_requests)
            while not isinstance(command, Stop):
                if isinstance(command, Submit):
                    self.add(engine, command)
                else:
                    self.drop(engine, command)
                command = self.commands.get_nowait()
        except Empty:
            return True
        return False

    def add(self, engine: RecoveringEngine, command: Submit) -> None:
        """Add a request to the engine, or note why it was refused."""
        try:
            request = engine.add_request(command.prompt_ids, command.params, command.priority)
        except ValueError as error:
            self.refused[command.ticket] = str(error)
            return
        text = TextIncrements(request.tokenizer, request.stop)
        self.live[request.prompt_idx] = LiveRequest(command.ticket, request, text)
        self.id_of[command.ticket] = request.prompt_idx

    def drop(self, engine: RecoveringEngine, command: Abort) -> None:
        """Abort a request, unless it is unknown or has ended."""
        request_id = self.id_of.get(command.ticket)
        if request_id is not None:
            engine.abort(request_id)
            self.forget(request_id)

    def forget(self, request_id: int) -> None:
        """Remove a request from those that are live."""
        del self.id_of[self.live.pop(request_id).ticket]

    def compute(self, engine: RecoveringEngine) -> StepReport:
        """Compute a step, if there is anything to compute, and describe it."""
        refused, self.refused = self.refused, {}
        if not engine.has_unfinished_requests:
            return StepReport(refused=refused)
        start = time.perf_counter()
        served = engine.step()
        seconds = time.perf_counter() - start
        cost = self._meter.cost_after(served.step.scheduled, seconds)
        stats = self._meter.stats_of(engine.engine, len(engine.held), served.is_failed)
        ids = [entry.sequence.id for entry in served.step.scheduled.entries]
        tickets = {id: self.live[id].ticket for id in ids if id in self.live}
        report = self.report(served)
        return replace(
            report,
            seconds=seconds,
            refused=refused,
            rows=rows_of(served.step.scheduled, tickets),
            drafts=drafts_of(served.step, tickets),
            stats=stats,
            cost=cost,
        )

    def report(self, served: ServedStep) -> StepReport:
        """Describe a step, and forget the requests that ended in it.

        An overlapping engine may still compute a request that was aborted. Such a request is not live any
        more, and no report mentions it.

        Returns:
            The number of tokens that were scheduled, and by ticket: which requests were scheduled for the
            first time, with their first entry's `start`; the increments of those that got a token or ended;
            and the errors, `explained`, of those that failed. The rest is filled in by `compute`.
        """
        step = served.step
        report = StepReport(
            step.scheduled.num_tokens,
            started=self._started(step.scheduled),
            increments=self._increments(served),
            failed={self.live[id].ticket: explained(error) for id, error in served.failed.items()},
        )
        for request_id in [*(request.prompt_idx for request in served.finished), *served.failed]:
            self.forget(request_id)
        return report

    def _started(self, scheduled: SchedulerOutput) -> dict[int, int]:
        """The requests that are scheduled for the first time, with their number of cached tokens."""
        started = {}
        for entry in scheduled.entries:
            live = self.live.get(entry.sequence.id)
            if live is not None and not live.is_started:
                live.is_started = True
                started[live.ticket] = entry.start
        return started

    def _increments(self, served: ServedStep) -> tuple[Increment, ...]:
        """What the answers have gained that got tokens or ended."""
        changed = [*served.step.sampled, *(request.prompt_idx for request in served.finished)]
        return tuple([self.live[request_id].increment() for request_id in dict.fromkeys(changed)])


def loaded(engine: Engine) -> Loaded:
    """Describe an engine that has been made."""
    blocks = engine.scheduler.blocks
    num_blocks, block_size = getattr(blocks, "num_blocks", 0), getattr(blocks, "block_size", 0)
    return Loaded(engine.vocab_size, engine.max_seq_len, num_blocks, block_size)


def end_streams() -> None:
    """Wait for this thread's device work and end its streams; the thread cannot use MLX after that.

    A thread that ends without this leaves streams that MLX takes down when the process exits. That may crash.

    Raises:
        RuntimeError: the device failed in something that was still under way; the streams are ended.
    """
    try:
        mx.synchronize()
    finally:
        mx.clear_streams()


def keep_from_collector() -> None:
    """Exempt all objects that exist now from garbage collection.

    A full collection visits every object, and stops all threads meanwhile. After loading a model and its
    tokenizer, that takes more than 100 ms; users would see it as a pause in their streams.
    """
    gc.collect()
    gc.freeze()
