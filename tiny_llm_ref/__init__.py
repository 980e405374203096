"""An LLM serving engine on MLX, from a matrix product to an engine that serves by one token budget."""

from typing import TYPE_CHECKING

from kernel_runtime import native  # noqa: F401  before MLX is loaded

# isort: split
from kernel_runtime import device  # noqa: F401  before anything is computed

from .batching.answer import GenerationResult
from .batching.batch_generator import BatchGenerator, batch_generate
from .batching.prefill_metrics import ChunkedPrefillMetrics, RequestTimes, percentile
from .batching.request import Request
from .engine.dense_runner import DenseRunner
from .engine.engine import Engine, EngineStep
from .engine.in_turn import InTurn
from .engine.model_runner import ModelRunner
from .engine.overlapped import overlapped
from .exercises.chunk_policy import AdaptiveChunker, PriorityScheduler, select_optimal_chunk_size
from .exercises.chunked_prefill import (
    chunked_attention_mask,
    chunked_prefill_schedule,
    num_prefill_steps,
    repaired_prefill_schedule,
)
from .exercises.closed_forms import num_prefill_steps_of_two
from .generation.generate import simple_generate, simple_generate_with_kv_cache
from .generation.sampler import SamplingParams, make_sampler
from .generation.structured_outputs import StructuredOutputsParams
from .model.config import ModelConfig
from .model.dense_kv_cache import BatchingKvCache, TinyKvFullCache
from .model.embedding import Embedding, QuantizedEmbedding
from .model.handover import handover_bytes, handover_delay, least_bandwidth
from .model.kv_cache import TinyKvCache
from .model.mlp import Qwen3MLP
from .model.moe import SparseMoe
from .model.moe_loader import MoeConfig, load_moe_model
from .model.qwen3 import HeadProjection, Qwen3Model, Qwen3MultiHeadAttention, Qwen3TransformerBlock
from .model.roofline import bandwidth_limit, cache_bytes_per_token, decode_bytes_per_token
from .model.sharded_loader import JoinedProjection, ShardedEmbedding
from .model.sharding import shard_config, shard_tensors
from .model.traffic import Link, received_bytes, step_seconds
from .ops.attention import (
    SimpleMultiHeadAttention,
    causal_mask,
    scaled_dot_product_attention_grouped,
    scaled_dot_product_attention_simple,
)
from .ops.basics import linear, silu, softmax
from .ops.experts import ExpertWeights, expected_num_experts, group_by_expert, grouped_matmul_simple, route
from .ops.flash_attention import flash_attention
from .ops.norm import RMSNorm
from .ops.paged_attention import paged_attention_simple
from .ops.positional_encoding import RoPE
from .ops.quantize import (
    QuantizedWeights,
    dequantize_weights,
    quantize_weights,
    quantized_linear,
    quantized_matmul_simple,
)
from .ops.quantized_blocks import dequantize_heads, quantize_heads
from .ops.quantized_paged_attention import quantized_paged_attention_simple
from .paging.forward_batch import ForwardBatch
from .paging.paged_kv_cache import PagedKvCache, PagedKvPool, slot_mapping
from .paging.quantized_kv_pool import QuantizedKvPool
from .ranks.follower import Follower
from .ranks.leading_model import LeadingModel
from .ranks.watchdog import Watchdog
from .scheduling.block_manager import BlockManager
from .scheduling.blocks import UnlimitedBlocks
from .scheduling.cache_events import CacheContents, CacheEvents
from .scheduling.load_report import LoadReport
from .scheduling.policy import Fcfs
from .scheduling.prefix_cache import PrefixCachingBlockManager
from .scheduling.priority import Priority
from .scheduling.scheduler import Scheduler, SchedulerConfig
from .scheduling.scheduler_output import ScheduledTokens, SchedulerOutput
from .scheduling.sequence import Sequence
from .simulation.cost_model import CostModel, fit_cost_model
from .simulation.fleet import Fleet, block_hashes, converse
from .simulation.latency_target import LatencyTarget
from .simulation.routing import CacheAware, LeastLoaded, ReplicaView, RoundRobin, num_known_blocks
from .simulation.serving_metrics import ServingMetrics, Slo
from .simulation.simulator import SimulatedRequest, Simulator
from .speculation.draft_model import DraftModel
from .speculation.grammar_drafter import GrammarDrafter
from .speculation.lookup_drafter import LookupDrafter
from .speculation.prompt_lookup import PromptLookup
from .speculation.with_drafts import WithDrafts, with_drafts
from .structured.constraint import Constraint

if TYPE_CHECKING:
    from accelerated.pretrained import load
else:

    def __getattr__(name: str) -> object:
        """Import `load` when it is asked for: `accelerated` stands on this package, and imports it."""
        if name != "load":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from accelerated import pretrained

        if pretrained.Qwen3Model is not Qwen3Model:
            raise ImportError(
                "load makes another package's models here: `import scripts` first, then use tiny_llm"
            )
        return pretrained.load


__all__ = [
    "AdaptiveChunker",
    "BatchGenerator",
    "BatchingKvCache",
    "BlockManager",
    "CacheAware",
    "CacheContents",
    "CacheEvents",
    "ChunkedPrefillMetrics",
    "Constraint",
    "CostModel",
    "DenseRunner",
    "DraftModel",
    "Embedding",
    "Engine",
    "EngineStep",
    "ExpertWeights",
    "Fcfs",
    "Fleet",
    "Follower",
    "ForwardBatch",
    "GenerationResult",
    "GrammarDrafter",
    "HeadProjection",
    "InTurn",
    "JoinedProjection",
    "LatencyTarget",
    "LeadingModel",
    "LeastLoaded",
    "Link",
    "LoadReport",
    "LookupDrafter",
    "ModelConfig",
    "ModelRunner",
    "MoeConfig",
    "PagedKvCache",
    "PagedKvPool",
    "PrefixCachingBlockManager",
    "Priority",
    "PriorityScheduler",
    "PromptLookup",
    "QuantizedEmbedding",
    "QuantizedKvPool",
    "QuantizedWeights",
    "Qwen3MLP",
    "Qwen3Model",
    "Qwen3MultiHeadAttention",
    "Qwen3TransformerBlock",
    "RMSNorm",
    "ReplicaView",
    "Request",
    "RequestTimes",
    "RoPE",
    "RoundRobin",
    "SamplingParams",
    "ScheduledTokens",
    "Scheduler",
    "SchedulerConfig",
    "SchedulerOutput",
    "Sequence",
    "ServingMetrics",
    "ShardedEmbedding",
    "SimpleMultiHeadAttention",
    "SimulatedRequest",
    "Simulator",
    "Slo",
    "SparseMoe",
    "StructuredOutputsParams",
    "TinyKvCache",
    "TinyKvFullCache",
    "UnlimitedBlocks",
    "Watchdog",
    "WithDrafts",
    "bandwidth_limit",
    "batch_generate",
    "block_hashes",
    "cache_bytes_per_token",
    "causal_mask",
    "chunked_attention_mask",
    "chunked_prefill_schedule",
    "converse",
    "decode_bytes_per_token",
    "dequantize_heads",
    "dequantize_weights",
    "expected_num_experts",
    "fit_cost_model",
    "flash_attention",
    "group_by_expert",
    "grouped_matmul_simple",
    "handover_bytes",
    "handover_delay",
    "least_bandwidth",
    "linear",
    "load",
    "load_moe_model",
    "make_sampler",
    "num_known_blocks",
    "num_prefill_steps",
    "num_prefill_steps_of_two",
    "overlapped",
    "paged_attention_simple",
    "percentile",
    "quantize_heads",
    "quantize_weights",
    "quantized_linear",
    "quantized_matmul_simple",
    "quantized_paged_attention_simple",
    "received_bytes",
    "repaired_prefill_schedule",
    "route",
    "scaled_dot_product_attention_grouped",
    "scaled_dot_product_attention_simple",
    "select_optimal_chunk_size",
    "shard_config",
    "shard_tensors",
    "silu",
    "simple_generate",
    "simple_generate_with_kv_cache",
    "slot_mapping",
    "softmax",
    "step_seconds",
    "with_drafts",
]
