"""Rows that are sampled against greedy ones: the sampler alone at three vocabularies, and whole decode steps.

pdm run bench sampling --model smollm2
"""

import time
from typing import Annotated, Any

import typer

from benches.mixed import alternate, report
from benches.rounds import MOST, Repeats, Rounds, itself
from benches.speed import machine
from benches.watched import Results
from scripts.checkpoints.files import SHIPPED_MODEL
from scripts.errors import usage_errors
from tiny_llm import BlockManager, Engine, ModelConfig, Qwen3Model, SamplingParams, SchedulerConfig
from tiny_llm.speculation.endless_tokenizer import EndlessTokenizer

ROWS = (1, 8, 64)
PROMPT_TOKENS, BLOCK_SIZE = 8, 16
TOKENS_PER_RUN = 1 << 18  # of a vocabulary, in one measurement of a sampler
BITS, GROUP_SIZE = 4, 64
SIZES: dict[str, dict[str, Any]] = {
    "SmolLM2-135M": {
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "vocab_size": 49152,
    },
    "Qwen3-0.6B": {
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "intermediate_size": 3072,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
    },
}
"""Models made of random weights, as large as these."""
Model = Annotated[str, typer.Option(help="A checkpoint folder, or a name for `pdm run get-model`.")]
Random = Annotated[bool, typer.Option(help="Models of random weights, of the sizes of larger ones, as well.")]


def main(model: Model = SHIPPED_MODEL, repeats: Repeats = None, random: Random = True) -> Results:
    """Time both sides in turns and print medians, least and most, and what sampling adds.

    Example: pdm run bench sampling --model smollm2 --no-random
    """
    from scripts.checkpoints.models import load_by_name

    with usage_errors():
        loaded, _ = load_by_name(model)
    sizes, rounds = SIZES if random else {}, Rounds(repeats)
    typer.echo(", ".join(map(str, machine().values())))
    typer.echo(f"\nthe sampler alone, {ROWS[1]} rows with top_p and top_k:")
    for V in (loaded.config.vocab_size, *(size["vocab_size"] for size in sizes.values())):
        report(f"of {V:,}", time_samplers(V, rounds))
    compare_steps(model, loaded, rounds)
    for name, size in sizes.items():
        compare_steps(f"random weights, as large as {name}", random_model(size), rounds)
    return Results(rounds)


def time_samplers(V: int, rounds: Rounds) -> dict[str, list[float]]:
    """Seconds of every way to sample the same rows; where a call is short, the mean of several."""
    import mlx.core as mx
    import numpy as np

    from accelerated.accelerate import best_sampler
    from tiny_llm.engine.batch_sampler import sample_batch
    from tiny_llm.engine.sampling_batch import SamplingBatch, random_numbers, sample_one_by_one

    B = ROWS[1]
    logits = 3 * mx.random.normal((B, V), key=mx.random.key(V))
    mx.eval(logits)
    numbers = random_numbers(np.arange(B, dtype=np.uint64), np.zeros(B, np.uint64))
    sides = {"one at a time": sample_one_by_one, "in arrays": sample_batch, "as used here": best_sampler()}

    params, num_calls = (sampled(),) * B, max(1, TOKENS_PER_RUN // V)

    def seconds_of(side: str, turn: int) -> float:
        start = time.perf_counter()
        for _ in range(num_calls):
            mx.eval(sides[side](logits, SamplingBatch(params, numbers)))
        return (time.perf_counter() - start) / num_calls

    return rounds.in_turns(sides, seconds_of, itself, f"of {V:,}")


def compare_steps(name: str, model: Qwen3Model, rounds: Rounds) -> None:
    """Print what a decode step takes with all rows greedy and with all sampled."""
    typer.echo(f"\na decode step, {name}, {model.config.vocab_size:,} tokens:")
    for num in ROWS:
        sides = {
            side: decoding(model, num, params).step
            for side, params in (("greedy", SamplingParams()), ("sampled", sampled()))
        }
        report(f"{num} rows", alternate(sides, rounds, f"{name}, {num} rows"))


def sampled() -> SamplingParams:
    """What a row that is sampled asks for."""
    return SamplingParams(temperature=0.8, top_p=0.9, top_k=50, seed=1)


def decoding(model: Qwen3Model, num: int, params: SamplingParams) -> Engine:
    """An engine in which so many decode."""
    max_seq_len = PROMPT_TOKENS + MOST + 3
    blocks = BlockManager(num * -(-max_seq_len // BLOCK_SIZE), BLOCK_SIZE)
    config = SchedulerConfig(num * PROMPT_TOKENS, num)
    engine = Engine(model, EndlessTokenizer(), config, max_seq_len, blocks)
    for seed in range(num):
        engine.add_request([3 + (7 * seed + i) % 50 for i in range(PROMPT_TOKENS)], params)
    engine.step()
    return engine


def random_model(size: dict[str, Any]) -> Qwen3Model:
    """A Qwen3 of the given size with random weights in 4 bits."""
    import mlx.core as mx
    import numpy as np

    from accelerated.accelerate import best_operations
    from tiny_llm.model.loader import Quantization, Tensors, build_model

    packing = {"group_size": GROUP_SIZE, "bits": BITS}
    config = ModelConfig.from_dict(
        {
            **size,
            "model_type": "qwen3",
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e6,
            "tie_word_embeddings": True,
        }
    )
    E, D = config.hidden_size, config.head_dim
    heads, kv_heads, hidden = config.num_attention_heads, config.num_key_value_heads, config.intermediate_size
    shapes: dict[str, tuple[int, int]] = {"model.embed_tokens": (config.vocab_size, E)}
    norms = {"model.norm": E}
    for i in range(config.num_hidden_layers):
        layer = f"model.layers.{i}"
        shapes |= {
            f"{layer}.self_attn.{name}_proj": (n * D, E)
            for name, n in (("q", heads), ("k", kv_heads), ("v", kv_heads))
        }
        shapes |= {f"{layer}.self_attn.o_proj": (E, heads * D), f"{layer}.mlp.down_proj": (E, hidden)}
        shapes |= {f"{layer}.mlp.{name}_proj": (hidden, E) for name in ("gate", "up")}
        norms |= {f"{layer}.{name}_layernorm": E for name in ("input", "post_attention")}
        norms |= {f"{layer}.self_attn.{name}_norm": D for name in ("q", "k")}
    tensors = {f"{name}.weight": mx.ones(dim) for name, dim in norms.items()}
    bits = np.random.default_rng(0)
    for name, (rows, inputs) in shapes.items():
        scales = mx.full((rows, inputs // GROUP_SIZE), 0.004)
        codes = mx.array(bits.integers(0, 2**32, (rows, inputs * BITS // 32), np.uint32))
        tensors |= {f"{name}.weight": codes, f"{name}.scales": scales, f"{name}.biases": -7.5 * scales}
    quantization = Quantization.from_config({"quantization": packing})
    operations = best_operations(mx.float32)
    model = build_model(config, Tensors(tensors, quantization, None, operations))
    model.operations = operations
    return model
