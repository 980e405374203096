"""Metrics for Prometheus, with vLLM's names, so that its dashboards work."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tiny_llm.paging.kv_files import KvFiles
from tiny_llm.server.mailbox import Loaded, StepReport

from .kept_metrics import KeptMetrics
from .record import RequestRecord
from .speculation import accepted_by_position

SECONDS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
FINISHED = ("stop", "length", "abort", "error")
REJECTED = ("num_queued_reqs", "num_queued_tokens")


class PrometheusMetrics:
    """Everything that /metrics shows. Used in the event loop only.

    Args:
        model_name: the label of all metrics.
    """

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self._labels = {"model_name": model_name, "engine": "0"}
        self.running = self._gauge("num_requests_running", "Requests that are prefilling or decoding.")
        self.waiting = self._gauge("num_requests_waiting", "Requests that wait for their turn.")
        self.kv_usage = self._gauge("kv_cache_usage_perc", "Fraction of the blocks in use; 1 is all of them.")
        self.queries = self._counter("prefix_cache_queries", "Tokens looked up in the prefix cache.")
        self.hits = self._counter("prefix_cache_hits", "Tokens found in the prefix cache.")
        self.preemptions = self._counter("num_preemptions", "Preemptions.")
        self.failed_steps = self._counter("num_failed_steps", "Steps that failed and were recovered from.")
        self.drafts = self._counter(
            "spec_decode_num_drafts", "Times that drafts were proposed for a request."
        )
        self.draft_tokens = self._counter("spec_decode_num_draft_tokens", "Tokens proposed as drafts.")
        self.accepted_tokens = self._counter("spec_decode_num_accepted_tokens", "Drafts that were accepted.")
        self._accepted_at = Counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Drafts that were accepted, by their position from 0.",
            [*self._labels, "position"],
            registry=self.registry,
        )
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of requests that got a token.")
        self.generation_tokens = self._counter("generation_tokens", "Tokens generated.")
        self._success = self._family("request_success", "Requests that ended.", "finished_reason", FINISHED)
        self._rejections = self._family("admission_rejections", "Requests refused.", "reason", REJECTED)
        self.ttft = self._histogram(
            "time_to_first_token_seconds", "From arrival to the first token.", SECONDS
        )
        self.itl = self._histogram("inter_token_latency_seconds", "Between two tokens of an answer.", SECONDS)
        self.e2e = self._histogram("e2e_request_latency_seconds", "From arrival to the end.", SECONDS)
        self.queue = self._histogram("request_queue_time_seconds", "From arrival to the first step.", SECONDS)
        self.prefill = self._histogram(
            "request_prefill_time_seconds", "From the first step to a token.", SECONDS
        )
        self.decode = self._histogram(
            "request_decode_time_seconds", "From the first token to the last.", SECONDS
        )
        self.request_prompt = self._histogram("request_prompt_tokens", "Prompt tokens of a request.", TOKENS)
        self.request_generation = self._histogram("request_generation_tokens", "Tokens of an answer.", TOKENS)
        self.params_n = self._histogram("request_params_n", "The n that clients asked for.", TOKENS)
        self.params_max = self._histogram("request_params_max_tokens", "The max_tokens asked for.", TOKENS)
        self.iteration = self._histogram("iteration_tokens_total", "Tokens of a step.", TOKENS)
        self._num_blocks = 0

    def loaded(self, loaded: Loaded) -> None:
        """Note the engine's pool."""
        self._num_blocks = loaded.num_blocks
        labels = {"num_gpu_blocks": str(loaded.num_blocks), "block_size": str(loaded.block_size)}
        info = Gauge("vllm:cache_config_info", "The pool.", [*self._labels, *labels], registry=self.registry)
        info.labels(**self._labels, **labels).set(1)

    def watch(self, files: KvFiles) -> None:
        """Show what is loaded from files and stored in them."""
        self.registry.register(KeptMetrics(files, self._labels))

    def step(self, report: StepReport) -> None:
        """Count a step."""
        stats = report.stats
        self.running.set(stats.num_running)
        self.waiting.set(stats.num_waiting)
        self.kv_usage.set(stats.num_used_blocks / self._num_blocks if self._num_blocks else 0)
        for counter, number in (
            (self.queries, stats.num_admitted_tokens),
            (self.hits, stats.num_hit_tokens),
            (self.preemptions, stats.num_preemptions),
            (self.failed_steps, stats.num_failed_steps),
            (self.generation_tokens, sum(len(each.token_ids) for each in report.increments)),
        ):
            if number:  # most steps change only the last, and a counter takes a lock
                counter.inc(number)
        if report.drafts:
            self._speculation(report)
        if report.num_tokens:
            self.iteration.observe(report.num_tokens)

    def _speculation(self, report: StepReport) -> None:
        """Count a step's drafts, and those of them that were accepted."""
        drafts = report.drafts.values()
        self.drafts.inc(len(drafts))
        self.draft_tokens.inc(sum(number for number, _ in drafts))
        self.accepted_tokens.inc(sum(number for _, number in drafts))
        for position, number in accepted_by_position(drafts).items():
            self._accepted_at.labels(**self._labels, position=str(position)).inc(number)

    def idle(self) -> None:
        """Note that there are no requests left. If the last one was aborted, no step says so."""
        for gauge in (self.running, self.waiting, self.kv_usage):
            gauge.set(0)

    def ended(self, record: RequestRecord) -> None:
        """Count a request that has ended, however it did."""
        self._success[record.outcome].inc()
        self.e2e.observe(record.ended - record.arrival)
        self.request_prompt.observe(record.num_prompt_tokens)
        self.request_generation.observe(record.num_tokens)
        if record.started is None:
            return
        self.queue.observe(record.started - record.arrival)
        if record.first_token is not None:
            self.prefill.observe(record.first_token - record.started)
            self.decode.observe(record.last_token - record.first_token)

    def rejected(self, reason: str) -> None:
        """Count a request that was refused since the server is full."""
        self._rejections[reason].inc()

    def text(self) -> bytes:
        """The metrics in Prometheus's text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, help: str) -> Counter:
        return Counter(f"vllm:{name}", help, self._labels, registry=self.registry).labels(**self._labels)

    def _gauge(self, name: str, help: str) -> Gauge:
        return Gauge(f"vllm:{name}", help, self._labels, registry=self.registry).labels(**self._labels)

    def _histogram(self, name: str, help: str, buckets: tuple[float, ...]) -> Histogram:
        family = Histogram(f"vllm:{name}", help, self._labels, registry=self.registry, buckets=buckets)
        return family.labels(**self._labels)

    def _family(self, name: str, help: str, label: str, values: tuple[str, ...]) -> dict[str, Counter]:
        family = Counter(f"vllm:{name}", help, [*self._labels, label], registry=self.registry)
        return {value: family.labels(**self._labels, **{label: value}) for value in values}
