"""The model equals mlx-lm's on random checkpoints of each family and switch, whole and in ragged chunks."""

from pathlib import Path

import mlx.core as mx
import pytest

from tests.support.checkpoints import VARIANTS, Variant, build, save
from tiny_llm.model.loader import load_model

TOLERANCE = 1e-4  # of the largest logit
CHUNKS = (1, 37, 50, 3, 59)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_logits_equal_mlx_lm(variant: Variant, tmp_path: Path) -> None:
    oracle = build(variant)
    model = load_model(save(variant, oracle, tmp_path, num_shards=1 + len(variant.name) % 3), mx.float32)
    oracle.set_dtype(mx.float32)
    tokens = mx.random.randint(0, model.config.vocab_size, (2, sum(CHUNKS)), key=mx.random.key(7))

    with mx.stream(mx.cpu):
        expected = oracle(tokens)
    tolerance = TOLERANCE * mx.abs(expected).max().item()
    assert mx.abs(model(tokens) - expected).max().item() <= tolerance

    cache, offset, chunks = model.create_kv_cache(), 0, []
    for size in CHUNKS:
        chunks.append(model(tokens[:, offset : offset + size], offset, cache))
        offset += size
    assert mx.abs(mx.concatenate(chunks, axis=1) - expected).max().item() <= tolerance
