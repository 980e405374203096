"""The numbers that cache, sampler and roofline show in a browser are those of the reference."""

import re
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from playwright.sync_api import Browser

from kernel_runtime.checkpoint import read_json
from scripts.checkpoints.files import SHIPPED_MODEL
from scripts.course import ROOT
from tests.book.figure_pages import Shown, show
from tests.book.reference_runs import tensors_of
from tests.book.test_figure_data import recorded
from tiny_llm import BatchingKvCache, ModelConfig, TinyKvFullCache
from tiny_llm.generation.sampler import keep_likely
from tiny_llm.model.roofline import bandwidth_limit, cache_bytes_per_token, decode_bytes_per_token


def cache_numbers(shown: Shown, cache: BatchingKvCache, layers: int) -> None:
    """The summary says what the reference's cache holds."""
    lengths, slots = cache.offset, cache.active_slots
    num_bytes = layers * sum(array.nbytes for array in cache.state)
    num_slots, heads, capacity, dim = cache.state[0].shape
    read = len(lengths) * max(lengths)
    expected = [
        len(slots),
        num_slots,
        *slots,
        sum(lengths),
        len(lengths),
        max(lengths),
        read,
        read - sum(lengths),
    ]
    expected += [num_slots, capacity, 2 * layers * heads * dim * cache.state[0].dtype.size]
    *found, amount, percent = re.findall(r"\d[\d.]*(?: [KMG]B)?", shown.summary.replace(". ", " "))
    assert [int(each) for each in found] == expected
    unit = {"KB": 1e3, "MB": 1e6, "GB": 1e9}
    assert float(amount[:-3]) * unit[amount[-2:]] == pytest.approx(num_bytes, rel=0.005)
    assert int(percent) == round(100 * sum(lengths) / (num_slots * capacity))


def test_cache_says_what_the_reference_holds(browser: Browser, tmp_path: Path) -> None:
    heads, dim, layers = 3, 32, 5

    def entries(B: int, L: int) -> mx.array:
        return mx.zeros((B, heads, L, dim))

    def add(slot: int, length: int) -> None:
        single = TinyKvFullCache()
        single.update_and_fetch(entries(1, length), entries(1, length))
        cache.add_request(single, slot)

    def press(name: str) -> None:
        shown.control(name).focus()
        shown.page.keyboard.press("Enter")

    element = f'<kv-cache slots="3" lengths="60 5" join="11" layers="{layers}" kv-heads="{heads}"></kv-cache>'
    shown = show(browser, tmp_path, element)
    cache = BatchingKvCache(3)
    add(0, 60)
    add(1, 5)
    cache_numbers(shown, cache, layers)
    press("decode-8")
    for _ in range(8):
        cache.update_and_fetch(entries(2, 1), entries(2, 1))
    cache_numbers(shown, cache, layers)
    assert shown.slide("join", "ArrowRight") == 12
    press("joins")
    add(2, 12)
    cache_numbers(shown, cache, layers)
    assert shown.control("joins").is_disabled()
    press("leave-0")
    cache.remove_request(0)
    cache_numbers(shown, cache, layers)
    assert "The last row, slot 2, moved into row 0" in shown.figure.inner_text()
    assert (
        shown.page.evaluate("document.activeElement.name") == "decode"
    )  # the focus is not lost with the button
    press("decode")
    cache.update_and_fetch(entries(2, 1), entries(2, 1))
    cache_numbers(shown, cache, layers)
    layers = int(shown.slide("layers", "ArrowRight"))
    cache_numbers(shown, cache, layers)
    assert shown.complaints == []


def sampler_numbers(shown: Shown, prompt: int, temp: float, top_p: float, top_k: int, min_p: float) -> None:
    """The summary says what the reference's sampler draws from."""
    logprobs = mx.array(recorded("sampler")["prompts"][prompt]["logprobs"])[None]
    likeliest = int(mx.argmax(logprobs))
    kept = keep_likely(logprobs, top_p, top_k or None, min_p)
    if temp == 0:
        kept = mx.where(mx.arange(kept.shape[1]) == likeliest, logprobs, -mx.inf)
    probs, is_kept = np.exp(np.array(logprobs, dtype=np.float64))[0], np.isfinite(np.array(kept))[0]
    after = np.array(mx.softmax(kept / (temp or 1), axis=-1))[0]
    found = [float(each) for each in re.findall(r"\d[\d.]*", re.sub("\u201c.*\u201d", "", shown.summary))]
    num_kept, num_tokens, *percents = found
    assert (num_kept, num_tokens) == (is_kept.sum(), len(probs))
    expected = [100 * each for each in (probs[is_kept].sum(), probs[likeliest], after[likeliest])]
    assert percents == pytest.approx(expected, abs=0.051)


def test_sampler_says_what_the_reference_does(browser: Browser, tmp_path: Path) -> None:
    shown = show(browser, tmp_path, '<viz-sampler prompt="1"></viz-sampler>')
    sampler_numbers(shown, 1, 1, 0, 0, 0)
    temp = shown.slide("temperature", *["ArrowLeft"] * 7)
    assert temp == pytest.approx(0.65)
    sampler_numbers(shown, 1, temp, 0, 0, 0)
    shown.slide("top-k", "End", "ArrowLeft", "ArrowLeft")
    sampler_numbers(shown, 1, temp, 0, 50, 0)
    top_p = shown.slide("top-p", "End", *["ArrowLeft"] * 20)
    assert top_p == pytest.approx(0.8)
    sampler_numbers(shown, 1, temp, top_p, 50, 0)
    shown.control("prompt").focus()
    shown.page.keyboard.press("ArrowDown")
    sampler_numbers(shown, 2, temp, top_p, 50, 0)
    min_p = shown.slide("min-p", *["ArrowRight"] * 25)
    sampler_numbers(shown, 2, temp, top_p, 50, min_p)
    temp = shown.slide("temperature", "Home")
    sampler_numbers(shown, 2, temp, top_p, 50, min_p)
    assert "dropped by greedy" in shown.figure.inner_text()
    assert shown.complaints == []


def significant(value: float) -> float:
    return float(f"{value:.3g}")


def roofline_numbers(shown: Shown, machine: tuple[float, float], bits: int, batch: int, context: int) -> None:
    """The summary's figures of a decode are those of the reference's roofline."""
    config = ModelConfig.from_dict(read_json(ROOT / "models" / SHIPPED_MODEL / "config.json"))
    bandwidth, peak = machine[0] * 1e9, machine[1] * 1e9
    floats = mx.float32 if bits == 32 else mx.float16
    weight_bytes = decode_bytes_per_token(config, tensors_of(config, bits))
    limit = bandwidth_limit(bandwidth, weight_bytes, batch, context * cache_bytes_per_token(config, floats))
    ridge, named, intensity, at_most, *_ = (
        float(each) for each in re.findall(r"\d[\d.]*\d|\d", shown.summary)
    )
    assert ridge == significant(peak / bandwidth)
    assert named == batch
    if intensity < ridge:
        assert at_most == pytest.approx(limit, rel=0.01)
        assert "memory decides: at most" in shown.summary
    else:
        assert at_most < limit
        assert "the processor decides" in shown.summary


def prefill_numbers(shown: Shown, machine: tuple[float, float], bits: int, chunk: int, context: int) -> None:
    """The summary's figures of a chunk: each weight twice a token, the head once, and what attention does."""
    config = ModelConfig.from_dict(read_json(ROOT / "models" / SHIPPED_MODEL / "config.json"))
    bandwidth, peak = machine[0] * 1e9, machine[1] * 1e9
    plain = tensors_of(config, 32)
    head = 2 * plain["model.embed_tokens.weight"].size
    layers = 2 * sum(tensor.size for tensor in plain.values() if tensor.ndim == 2) - head
    pair = 4 * config.num_hidden_layers * config.num_attention_heads * config.head_dim
    operations = chunk * layers + head + pair * sum(context + i + 1 for i in range(chunk))
    token_bytes = cache_bytes_per_token(config, mx.float32 if bits == 32 else mx.float16)
    num_bytes = decode_bytes_per_token(config, tensors_of(config, bits)) + context * token_bytes
    *_, named, intensity, at_most = (float(each) for each in re.findall(r"\d[\d.]*\d|\d", shown.summary))
    assert named == chunk
    assert intensity == pytest.approx(operations / num_bytes, rel=0.01)
    assert at_most == pytest.approx(chunk / max(num_bytes / bandwidth, operations / peak), rel=0.01)


def test_roofline_says_what_the_reference_does(browser: Browser, tmp_path: Path) -> None:
    shown = show(browser, tmp_path, '<viz-roofline batch="4" context="256"></viz-roofline>')
    data = recorded("roofline")
    roofline_numbers(shown, (data["bandwidth"], data["peak"]), 32, 4, 256)
    shown.slide("batch", "Home")
    roofline_numbers(shown, (data["bandwidth"], data["peak"]), 32, 1, 256)
    shown.slide("context", "End", "ArrowLeft")
    roofline_numbers(shown, (data["bandwidth"], data["peak"]), 32, 1, 16384)
    for name, value in (("bandwidth", "123.5"), ("peak", "4000")):
        shown.control(name).focus()
        shown.page.keyboard.press("Control+A")
        shown.page.keyboard.type(value)
    for bits in (32, 16, 8, 4):
        shown.control("bits").select_option(str(bits))
        roofline_numbers(shown, (123.5, 4000), bits, 1, 16384)
    prefill_numbers(shown, (123.5, 4000), 4, 64, 16384)
    shown.slide("chunk", "ArrowRight")
    prefill_numbers(shown, (123.5, 4000), 4, 128, 16384)
    shown.slide("context", "Home")
    prefill_numbers(shown, (123.5, 4000), 4, 128, 0)
    shown.control("model").select_option("qwen3-0.6b")
    assert "qwen3" not in shown.summary
    shown.control("peak").fill("")
    assert shown.summary == "Bandwidth and peak must be numbers above 0."
    assert shown.complaints == []


def filled_cache(num_slots: int, heads: int, dim: int, lengths: list[int]) -> BatchingKvCache:
    cache = BatchingKvCache(num_slots)
    for slot, length in enumerate(lengths):
        single = TinyKvFullCache()
        single.update_and_fetch(*mx.zeros((2, 1, heads, length, dim)))
        cache.add_request(single, slot)
    return cache


def test_sizes_of_the_cache_are_the_sliders(browser: Browser, tmp_path: Path) -> None:
    element = '<kv-cache slots="3" lengths="60 5" layers="5" kv-heads="3" head-dim="32"></kv-cache>'
    shown = show(browser, tmp_path, element)
    shown.slide("kv-heads", "ArrowRight")
    cache_numbers(shown, filled_cache(3, 4, 32, [60, 5]), 5)
    shown.slide("head-dim", "ArrowRight")
    cache_numbers(shown, filled_cache(3, 4, 64, [60, 5]), 5)
    shown.slide("slots", "ArrowRight")
    cache_numbers(shown, filled_cache(4, 4, 64, [60, 5]), 5)
    assert shown.complaints == []
