"""An LLM serving engine on MLX, from a matrix product to an engine that serves by one token budget."""

from . import native  # noqa: F401  before MLX is loaded

# isort: split
from . import device  # noqa: F401  before anything is computed
from .answer import GenerationResult
from .attention import (
    SimpleMultiHeadAttention,
    causal_mask,
    scaled_dot_product_attention_grouped,
    scaled_dot_product_attention_simple,
)
from .basics import linear, silu, softmax
from .batch import BatchGenerator, batch_generate
from .chunk_policy import AdaptiveChunker, PriorityScheduler, select_optimal_chunk_size
from .chunked_prefill import (
    chunked_attention_mask,
    chunked_prefill_schedule,
    num_prefill_steps,
    repaired_prefill_schedule,
)
from .config import ModelConfig
from .embedding import Embedding, QuantizedEmbedding
from .flash_attention import flash_attention
from .generate import simple_generate, simple_generate_with_kv_cache
from .kv_cache import BatchingKvCache, TinyKvCache, TinyKvFullCache
from .layer_norm import RMSNorm
from .mlp import Qwen3MLP
from .paged_attention import paged_attention_simple
from .positional_encoding import RoPE
from .prefill_metrics import ChunkedPrefillMetrics, RequestTimes, percentile
from .pretrained import load
from .quantize import (
    QuantizedWeights,
    dequantize_weights,
    quantize_weights,
    quantized_linear,
    quantized_matmul_simple,
)
from .qwen3 import Qwen3Model, Qwen3MultiHeadAttention, Qwen3TransformerBlock
from .request import Request
from .roofline import bandwidth_limit, cache_bytes_per_token, decode_bytes_per_token
from .sampler import SamplingParams, make_sampler
from .serving.block_manager import BlockManager
from .serving.closed_forms import num_prefill_steps_of_two
from .serving.cost_model import CostModel, fit_cost_model
from .serving.engine import Engine, EngineStep
from .serving.forward_batch import ForwardBatch
from .serving.latency_target import LatencyTarget
from .serving.metrics import ServingMetrics, Target
from .serving.model_runner import ModelRunner
from .serving.paged_kv_cache import PagedKvCache, PagedKvPool, slot_mapping
from .serving.policy import Fcfs
from .serving.prefix_cache import PrefixCachingBlockManager
from .serving.priority import Priority
from .serving.runner import DenseRunner
from .serving.scheduled import ScheduledTokens, SchedulerOutput
from .serving.scheduler import Scheduler, SchedulerConfig
from .serving.sequence import Sequence
from .serving.simulator import SimulatedRequest, Simulator

__all__ = [
    "AdaptiveChunker",
    "BatchGenerator",
    "BatchingKvCache",
    "BlockManager",
    "ChunkedPrefillMetrics",
    "CostModel",
    "DenseRunner",
    "Embedding",
    "Engine",
    "EngineStep",
    "Fcfs",
    "ForwardBatch",
    "GenerationResult",
    "LatencyTarget",
    "ModelConfig",
    "ModelRunner",
    "PagedKvCache",
    "PagedKvPool",
    "PrefixCachingBlockManager",
    "Priority",
    "PriorityScheduler",
    "QuantizedEmbedding",
    "QuantizedWeights",
    "Qwen3MLP",
    "Qwen3Model",
    "Qwen3MultiHeadAttention",
    "Qwen3TransformerBlock",
    "RMSNorm",
    "Request",
    "RequestTimes",
    "RoPE",
    "SamplingParams",
    "ScheduledTokens",
    "Scheduler",
    "SchedulerConfig",
    "SchedulerOutput",
    "Sequence",
    "ServingMetrics",
    "SimpleMultiHeadAttention",
    "SimulatedRequest",
    "Simulator",
    "Target",
    "TinyKvCache",
    "TinyKvFullCache",
    "bandwidth_limit",
    "batch_generate",
    "cache_bytes_per_token",
    "causal_mask",
    "chunked_attention_mask",
    "chunked_prefill_schedule",
    "decode_bytes_per_token",
    "dequantize_weights",
    "fit_cost_model",
    "flash_attention",
    "linear",
    "load",
    "make_sampler",
    "num_prefill_steps",
    "num_prefill_steps_of_two",
    "paged_attention_simple",
    "percentile",
    "quantize_weights",
    "quantized_linear",
    "quantized_matmul_simple",
    "repaired_prefill_schedule",
    "scaled_dot_product_attention_grouped",
    "scaled_dot_product_attention_simple",
    "select_optimal_chunk_size",
    "silu",
    "simple_generate",
    "simple_generate_with_kv_cache",
    "slot_mapping",
    "softmax",
]
