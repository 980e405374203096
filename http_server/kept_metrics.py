"""Metrics of blocks in files, with the names of vLLM's offloading."""

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from tiny_llm.paging.kv_files import KvFiles


class KeptMetrics(Collector):
    """What /metrics shows of the files, read when it is asked.

    Args:
        files: counts what it loads and stores.
        labels: of all metrics.
    """

    def __init__(self, files: KvFiles, labels: Mapping[str, str]) -> None:
        self.files = files
        self.labels = labels

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The counters as they are now."""
        files = self.files
        for name, number, help in (
            ("load_blocks", files.num_loads, "Blocks read from files."),
            ("load_bytes", files.num_load_bytes, "Bytes of blocks read from files."),
            ("store_blocks", files.num_stores, "Blocks written to files."),
            ("store_bytes", files.num_store_bytes, "Bytes of blocks written to files."),
            ("stores_skipped", files.num_skipped, "Blocks that could not be written, or not in time."),
        ):
            family = CounterMetricFamily(f"vllm:kv_offload_{name}", help, labels=list(self.labels))
            family.add_metric(list(self.labels.values()), number)
            yield family
