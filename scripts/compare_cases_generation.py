"""The inputs of `pdm run compare` for generation, sampling and the KV cache."""

from dataclasses import asdict
from itertools import islice
from types import ModuleType

import mlx.core as mx

from scripts.compare_cases import (
    ByteTokenizer,
    case,
    normal,
    small_model,
    token_ids,
)
from scripts.compare_trees import Tree

# week 1 day 6

TEXT = "the naïve café — 起初 🌱"


@case("generate.encode_prompt")
def encoded(tiny: ModuleType) -> Tree:
    """Text and token ids."""
    return [tiny.generate.encode_prompt(ByteTokenizer(), prompt) for prompt in (TEXT, f"<{TEXT}", (7, 8, 9))]


@case("generate.to_logprobs")
def logprobs(tiny: ModuleType) -> Tree:
    """Of 4096 tokens, float16."""
    return tiny.generate.to_logprobs(normal(3, 17, 4096, dtype=mx.float16))


@case("generate.TextStream")
def streamed(tiny: ModuleType) -> Tree:
    """Multi-byte characters."""
    pieces: list[str] = []
    stream = tiny.generate.TextStream(ByteTokenizer(), pieces.append)
    for token in f"{TEXT * 3}".encode()[:-1]:
        stream.add(token)
    return {"text": stream.finish(), "pieces": pieces}


@case("generate.simple_generate")
def generated(tiny: ModuleType) -> Tree:
    """8 tokens, greedily."""
    pieces: list[str] = []
    sampler = tiny.make_sampler(0)
    text = tiny.simple_generate(
        small_model(tiny), ByteTokenizer(), token_ids(31), sampler, max_tokens=8, on_text=pieces.append
    )
    return {"text": text, "pieces": pieces}


# week 1 day 7


def likelihoods(B: int, V: int = 2048) -> mx.array:
    """Log-probabilities [B, V] of which a few tokens have most."""
    logits = 3 * normal(B, V, seed=4)
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


@case("sampler.make_sampler")
def greedy(tiny: ModuleType) -> Tree:
    """Greedy."""
    return tiny.make_sampler(0)(likelihoods(31))


@case("sampler.make_sampler")
def drawn(tiny: ModuleType) -> Tree:
    """Three draws, one seed."""
    sampler = tiny.make_sampler(0.8, top_p=0.9, top_k=50, min_p=0.01, seed=7)
    return [sampler(likelihoods(31)) for _ in range(3)]


@case("sampler.keep_likely")
def kept(tiny: ModuleType) -> Tree:
    """Top-k, top-p, min-p."""
    cuts = {"top-k": (0, 50, 0), "top-p": (0.9, None, 0), "min-p": (0, None, 0.02), "all": (0.8, 40, 0.01)}
    return {name: tiny.sampler.keep_likely(likelihoods(31), *cut) for name, cut in cuts.items()}


@case("sampler.random_keys")
def keys(tiny: ModuleType) -> Tree:
    """Of a seed, of none."""
    random_keys = tiny.sampler.random_keys
    return {"seed 7": list(islice(random_keys(7), 5)), "no seed": list(islice(random_keys(None), 3))}


@case("sampler.SamplingParams")
def params(tiny: ModuleType) -> Tree:
    """As given, its sampler."""
    given = tiny.SamplingParams(temp=0.7, top_k=20, seed=3, max_tokens=9, stop=("end",))
    sampler = given.make_sampler()
    return {
        "default": asdict(tiny.SamplingParams()),
        "given": asdict(given),
        "drawn": sampler(likelihoods(31)),
    }


# week 2 day 1


@case("kv_cache.TinyKvFullCache")
def cached(tiny: ModuleType) -> Tree:
    """Grows, forgets, grows."""
    cache = tiny.TinyKvFullCache()
    for i, L in enumerate((67, 1, 1, 31)):
        pair = (normal(1, 2, L, 64, seed=2 * i), normal(1, 2, L, 64, seed=2 * i + 1))
        key, value, offset, mask = cache.update_and_fetch(*pair, mask_length=L, mask="causal")
        if i == 1:
            cache.rewind(13)
    return {"key": key, "value": value, "offset": offset, "mask": mask, "fetched": list(cache.fetch())}


@case("qwen3.Qwen3Model.create_kv_cache")
def model_with_cache(tiny: ModuleType) -> Tree:
    """Two chunks and a token."""
    model, tokens = small_model(tiny), token_ids(98)
    cache = model.create_kv_cache()
    parts = ((0, 61), (61, 97), (97, 98))
    return [model(mx.array([tokens[start:end]]), start, cache) for start, end in parts]


@case("generate.simple_generate_with_kv_cache")
def generated_with_cache(tiny: ModuleType) -> Tree:
    """16 tokens, greedily."""
    pieces: list[str] = []
    text = tiny.simple_generate_with_kv_cache(
        small_model(tiny),
        ByteTokenizer(),
        token_ids(31),
        tiny.make_sampler(0),
        max_tokens=16,
        on_text=pieces.append,
    )
    return {"text": text, "pieces": pieces}
