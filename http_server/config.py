"""The settings of a server."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from kernel_runtime.limits import check_integer
from tiny_llm.engine.kept_blocks import KeptBlocks
from tiny_llm.scheduling.scheduler import SchedulerConfig

LOOPBACK = ("127.0.0.1", "::1", "localhost")
LEAST = {
    "port": 0,
    "max_num_queued_reqs": 0,
    "max_num_queued_tokens": 1,
    "max_body_bytes": 1,
    "num_speculative_tokens": 0,
}
"""The smallest value of each setting that is an integer."""


@dataclass(frozen=True)
class ServerConfig:
    """The settings of a server, apart from its model.

    Args:
        model_names: the names by which clients may ask for the model; the first one is in responses.
        scheduler: the limits of a step.
        host, port: where to listen.
        api_key: what clients must send; None for no access control.
        no_auth: listen on an address that other machines can reach, without an API key.
        max_num_queued_reqs: largest number of requests beyond those that run.
        max_num_queued_tokens: largest number of prompt tokens of requests without a token; None for no limit.
        max_body_bytes: largest body of a request.
        body_timeout: seconds that a client may take to send one.
        keepalive: seconds of silence after which a stream gets a comment.
        send_timeout: seconds after which a stream ends whose client takes nothing.
        timeout_graceful_shutdown: seconds after which draining cuts answers off.
        num_speculative_tokens: largest number of drafts of a request in a step; 0 without speculation.
        has_priorities: whether the policy of the scheduler knows priorities.
        allowed_origins: the websites whose pages may read responses, such as "https://example.org"; "*" for
            all.
        kept: keeps blocks in files, if the engine does.

    Raises:
        ValueError: a limit is below its minimum or no integer, a name is empty or given twice, no client
            could send the API key, the address needs one, or an origin is none.
    """

    model_names: tuple[str, ...]
    scheduler: SchedulerConfig
    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    no_auth: bool = False
    max_num_queued_reqs: int = 256
    max_num_queued_tokens: int | None = None
    max_body_bytes: int = 2 * 2**20
    body_timeout: float = 60.0
    keepalive: float = 15.0
    send_timeout: float = 60.0
    timeout_graceful_shutdown: float = 300.0
    num_speculative_tokens: int = 0
    has_priorities: bool = False
    allowed_origins: tuple[str, ...] = ()
    kept: KeptBlocks | None = None

    def __post_init__(self) -> None:
        self._check_names()
        self._check_access()
        for origin in self.allowed_origins:
            check_origin(origin)
        self._check_limits()

    @property
    def max_num_reqs(self) -> int:
        """Largest number of unfinished requests."""
        return self.scheduler.max_num_seqs + self.max_num_queued_reqs

    def _check_limits(self) -> None:
        for name, least in LEAST.items():
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), least)
        for name in ("body_timeout", "keepalive", "send_timeout"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0 seconds, got {getattr(self, name)}")
        if not self.timeout_graceful_shutdown >= 0:
            raise ValueError(
                f"timeout_graceful_shutdown must not be negative, got {self.timeout_graceful_shutdown}"
            )

    def _check_names(self) -> None:
        if not self.model_names or not all(name.strip() for name in self.model_names):
            raise ValueError("a model needs a name that is not empty: give another --served-model-name")
        if len(set(self.model_names)) < len(self.model_names):
            names = ", ".join(self.model_names)
            raise ValueError(f"the names of the model must differ, got {names}")

    def _check_access(self) -> None:
        key = self.api_key
        if key is not None and not key.strip():
            raise ValueError("api_key must not be empty: leave it out for no access control")
        if key is not None and not (key.isprintable() and key == key.strip()):
            raise ValueError(
                "api_key must be printable, without spaces around it: clients send it in a header"
            )
        if key is not None and self.no_auth:
            raise ValueError("--no-auth lets everyone in, but an API key is set: leave out one of them")
        if self.host not in LOOPBACK and key is None and not self.no_auth:
            raise ValueError(
                f"other machines can reach {self.host}: set --api-key, or give --no-auth to let anyone in"
            )


def check_origin(origin: str) -> None:
    """Raise ValueError unless a browser could send this as a page's origin, or it is "*" for all."""
    if origin == "*":
        return
    try:
        parts = urlsplit(origin)
        written = f"{parts.scheme}://{parts.netloc}"
        is_origin = bool(parts.scheme and parts.hostname) and origin == written.lower() and "@" not in origin
        parts.port  # noqa: B018 - raises ValueError
    except ValueError:
        is_origin = False
    if not is_origin:
        raise ValueError(f"an allowed origin looks like https://example.org or *, got {origin!r}")
