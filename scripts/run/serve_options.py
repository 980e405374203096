"""The options of `pdm run serve`. They have the names of vLLM's, or of uvicorn's."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from http_server.kv_events_config import KvEventsConfig, parse_kv_events_config
from scripts.checkpoints.files import DRAFT_MODEL, SHIPPED_MODEL

KV_CACHE_GB = 10
RouterName = Literal["vllm", "sglang"]
RouterPolicy = Literal["round_robin", "cache_aware", "kv_aware"]
Model = Annotated[str, typer.Option(help="A checkpoint folder, or a name for `pdm run get-model`.")]
Names = Annotated[
    list[str] | None, typer.Option("--served-model-name", help="What clients call it; repeat for more names.")
]
Host = Annotated[str, typer.Option(help="The address to listen on.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 for any free one.")]
ApiKey = Annotated[str | None, typer.Option(envvar="TINY_LLM_API_KEY", help="What clients must send.")]
NoAuth = Annotated[bool, typer.Option("--no-auth", help="Let any machine in that can reach the address.")]
Origins = Annotated[
    list[str] | None,
    typer.Option(
        "--allowed-origins", help="A website whose pages may use the server; repeat for more, * for all."
    ),
]
MaxModelLen = Annotated[int | None, typer.Option(min=1, help="Most tokens of a request, prompt and answer.")]
MaxNumSeqs = Annotated[int, typer.Option(min=1, help="Most requests that run at once.")]
MaxNumBatchedTokens = Annotated[int, typer.Option(min=1, help="Most tokens of a step.")]
MaxNumQueuedReqs = Annotated[int, typer.Option(min=0, help="Most requests that wait; others get 429.")]
MaxNumQueuedTokens = Annotated[
    int | None, typer.Option(min=1, help="Most prompt tokens that wait; others get 429.")
]
NumBlocks = Annotated[
    int | None, typer.Option("--num-gpu-blocks-override", min=1, help="Blocks of the pool.")
]
BlockSize = Annotated[int, typer.Option(min=1, help="Tokens of a block.")]
NoPrefixCaching = Annotated[
    bool, typer.Option("--no-enable-prefix-caching", help="Compute equal beginnings again.")
]
Overcommit = Annotated[
    bool,
    typer.Option(
        "--overcommit", help="Admit by the blocks that a request needs now; preempt if they run out."
    ),
]
KvEvents = Annotated[
    str | None,
    typer.Option(
        "--kv-events-config",
        metavar="JSON",
        help="Publish what the prefix cache holds, for routers: "
        """'{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557"}'.""",
    ),
]
KvBits = Annotated[
    Literal["8", "4"] | None,
    typer.Option(help="Quantize keys to 8 bits, and values to so many. [default: floats]"),
]
KvCacheDir = Annotated[
    Path | None,
    typer.Option(
        help="A folder for blocks that memory has no room for. They come back for prompts that begin with "
        "them, even after a restart."
    ),
]
KvCacheGb = Annotated[
    float | None,
    typer.Option(help=f"Most gigabytes in that folder; the oldest go first. [default: {KV_CACHE_GB}]"),
]
NumRanks = Annotated[
    int, typer.Option("--ranks", min=1, help="Processes that share the model, each with a part of it.")
]
NumReplicas = Annotated[
    int, typer.Option("--replicas", min=1, help="Servers on this machine, with a router in front of them.")
]
Router = Annotated[
    RouterName | None,
    typer.Option(help="Whose router that is. [default: vllm on Linux, sglang on macOS]"),
]
Policy = Annotated[
    RouterPolicy | None,
    typer.Option(
        "--router-policy",
        help="How it chooses a server: in turn, by the texts that it sent, or by KV events. "
        "[default: kv_aware if vllm-router can follow events, otherwise cache_aware]",
    ),
]
StepTimeout = Annotated[
    float | None,
    typer.Option(
        min=0.1,
        help="With several ranks, the seconds of a step after which all end. [default: from what steps cost]",
    ),
]
SchedulingPolicy = Annotated[Literal["fcfs", "priority"], typer.Option(help="Which requests go first.")]
Speculation = Annotated[
    Literal["off", "lookup", "draft-model"],
    typer.Option(
        help="Where drafts come from: the tokens so far, or a smaller model. Without drafts, the server "
        "prepares each step during the one before; with drafts, it can't."
    ),
]
NumSpeculativeTokens = Annotated[
    int | None,
    typer.Option(min=1, max=32, help="Most drafts of a request in a step. [default: 8, or 3 of a model]"),
]
DraftModel = Annotated[
    str | None,
    typer.Option(
        help="The smaller model, with the same tokenizer. Requests that outgrow its context get no drafts. "
        f"[default: {DRAFT_MODEL}]"
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout-graceful-shutdown", min=0, help="Seconds after Ctrl-C at which answers are cut off."
    ),
]
Mine = Annotated[bool, typer.Option("--mine", help="Serve with tiny_llm, your own.")]

NUM_DRAFTS = {"off": 0, "lookup": 8, "draft-model": 3}


@dataclass(frozen=True)
class ServeOptions:
    """What is served, to whom, and within which limits.

    Raises:
        ValueError: an option is given without the one that it belongs to, or with one that it doesn't fit; or
            `kv_events_config` can't be read.
    """

    model: Model = SHIPPED_MODEL
    served_model_name: Names = None
    host: Host = "127.0.0.1"
    port: Port = 8000
    api_key: ApiKey = None
    no_auth: NoAuth = False
    allowed_origins: Origins = None
    max_model_len: MaxModelLen = None
    max_num_seqs: MaxNumSeqs = 8
    max_num_batched_tokens: MaxNumBatchedTokens = 128
    max_num_queued_reqs: MaxNumQueuedReqs = 256
    max_num_queued_tokens: MaxNumQueuedTokens = None
    num_gpu_blocks_override: NumBlocks = None
    block_size: BlockSize = 16
    no_enable_prefix_caching: NoPrefixCaching = False
    overcommit: Overcommit = False
    kv_bits: KvBits = None
    kv_events_config: KvEvents = None
    kv_cache_dir: KvCacheDir = None
    kv_cache_gb: KvCacheGb = None
    ranks: NumRanks = 1
    step_timeout: StepTimeout = None
    replicas: NumReplicas = 1
    router: Router = None
    router_policy: Policy = None
    scheduling_policy: SchedulingPolicy = "fcfs"
    speculation: Speculation = "off"
    num_speculative_tokens: NumSpeculativeTokens = None
    draft_model: DraftModel = None
    timeout_graceful_shutdown: Timeout = 300.0
    mine: Mine = False

    def __post_init__(self) -> None:
        if self.num_speculative_tokens is not None and self.speculation == "off":
            raise ValueError("--num-speculative-tokens needs --speculation lookup or draft-model")
        for name in ("router", "router_policy"):
            if getattr(self, name) is not None and self.replicas == 1:
                raise ValueError(f"--{name.replace('_', '-')} needs --replicas 2 or more")
        if self.draft_model is not None and self.speculation != "draft-model":
            raise ValueError("--draft-model needs --speculation draft-model")
        if self.kv_events is not None and self.no_enable_prefix_caching:
            raise ValueError(
                "--kv-events-config tells what the prefix cache holds: leave out --no-enable-prefix-caching"
            )
        self._check_kv_cache()

    def _check_kv_cache(self) -> None:
        if self.kv_cache_dir is None:
            if self.kv_cache_gb is not None:
                raise ValueError("--kv-cache-gb needs --kv-cache-dir, the folder that it limits")
            return
        if self.kv_cache_gb is not None and not 0 < self.kv_cache_gb < math.inf:
            raise ValueError(f"--kv-cache-gb must be above 0, got {self.kv_cache_gb:g}")
        if self.no_enable_prefix_caching:
            raise ValueError("--kv-cache-dir needs prefix caching: leave out --no-enable-prefix-caching")
        if self.ranks > 1:
            raise ValueError("--kv-cache-dir works with one process: leave out --ranks")

    @property
    def names(self) -> tuple[str, ...]:
        """What clients may call the model."""
        return tuple(self.served_model_name or [self.model])

    @property
    def kv_events(self) -> KvEventsConfig | None:
        """Where KV events go; None if there are to be none."""
        if self.kv_events_config is None:
            return None
        config = parse_kv_events_config(self.kv_events_config)
        return config if config.is_on else None

    @property
    def kv_cache_bytes(self) -> int:
        """Most bytes in the folder for blocks."""
        return int((KV_CACHE_GB if self.kv_cache_gb is None else self.kv_cache_gb) * 1e9)

    @property
    def num_drafts(self) -> int:
        """Most drafts of a request in a step; 0 without speculation."""
        return self.num_speculative_tokens or NUM_DRAFTS[self.speculation]

    @property
    def draft_model_name(self) -> str | None:
        """The model that drafts, if one does."""
        return (self.draft_model or DRAFT_MODEL) if self.speculation == "draft-model" else None
