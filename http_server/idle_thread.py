"""An engine's thread that also works while there is nothing to compute."""

from collections.abc import Callable, Iterator

from tiny_llm.engine.engine import Engine
from tiny_llm.server.engine_thread import EngineThread
from tiny_llm.server.mailbox import Report
from tiny_llm.server.recovery import RecoveringEngine


class IdleThread(EngineThread):
    """An `EngineThread` that does other work when no request is left: a piece at a time, until one comes.

    It does all of the work before it ends.

    Args:
        make_engine, post: as for `EngineThread`.
        when_idle: begins the work, and does a piece of it per item. Called in the thread.
    """

    def __init__(
        self,
        make_engine: Callable[[], Engine],
        post: Callable[[Report], None],
        when_idle: Callable[[], Iterator[None]],
    ) -> None:
        super().__init__(make_engine, post)
        self.when_idle = when_idle

    def take_commands(self, engine: RecoveringEngine) -> bool:
        """Work until a command arrives or nothing is left to do, then take commands."""
        if not engine.has_unfinished_requests and self.commands.empty():
            for _ in self.when_idle():
                if not self.commands.empty():
                    break
        return super().take_commands(engine)

    def serve(self, engine: RecoveringEngine) -> None:
        """Serve until `stop`, then do the rest of the work."""
        super().serve(engine)
        for _ in self.when_idle():
            pass
