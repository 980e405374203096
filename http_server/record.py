"""What happened to a request, for the log and the metrics."""

import logging
from dataclasses import dataclass, field

from .speculation import DraftCounts

log = logging.getLogger("tiny_llm.requests")


@dataclass
class RequestRecord:
    """The life of one answer. Times are in seconds, counted from any start.

    Attributes:
        name: the id in the response, with the index of the answer.
        arrival, started, first_token, last_token, ended: times; None for what has not happened.
        num_prompt_tokens, num_cached_tokens, num_tokens: of the prompt, of those found in the prefix cache,
            and of the answer.
        drafts: what became of its drafts.
        outcome: "stop", "length", "abort" or "error".
    """

    name: str
    arrival: float
    num_prompt_tokens: int
    num_cached_tokens: int = 0
    num_tokens: int = 0
    started: float | None = None
    first_token: float | None = None
    last_token: float = 0.0
    ended: float = 0.0
    drafts: DraftCounts = field(default_factory=DraftCounts)
    outcome: str = "abort"

    def log_line(self) -> None:
        """Write the line of the log."""
        queue, ttft = self._since_arrival(self.started), self._since_arrival(self.first_token)
        log.info(
            "%s prompt=%d cached=%d tokens=%d queue=%s ttft=%s total=%s end=%s",
            self.name,
            self.num_prompt_tokens,
            self.num_cached_tokens,
            self.num_tokens,
            queue,
            ttft,
            self._since_arrival(self.ended),
            self.outcome,
        )

    def _since_arrival(self, moment: float | None) -> str:
        return "-" if moment is None else f"{moment - self.arrival:.3f}s"
