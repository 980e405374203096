"""Blocks that are kept in files: no token changes, whatever is evicted, restored, or lost on the way."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.test_invariance import no_health_checks, with_features
from tests.support.check import check_equal, normal
from tests.support.kept import KeepingEngine, KeptPool, files_in, keeping
from tests.support.schedules import IdTokenizer, Pool, check_engine_law, random_qwen3
from tests.support.speculation import DRAFTERS
from tiny_llm import (
    BlockManager,
    InTurn,
    PagedKvPool,
    QuantizedKvPool,
    SamplingParams,
    SchedulerConfig,
    Sequence,
    overlapped,
    with_drafts,
)
from tiny_llm.engine.execution import MakeExecution
from tiny_llm.engine.kept_blocks import BlockCopies, read_blocks, restore_blocks
from tiny_llm.paging.block_file import Block
from tiny_llm.paging.pool import Pool as AnyPool
from tiny_llm.scheduling.block_hashes import Prefix
from tiny_llm.scheduling.cache_salts import salt_sequence
from tiny_llm.scheduling.tiered_blocks import TieredBlockManager

pytestmark = pytest.mark.usefixtures("on_cpu")
BLOCK_SIZE = 4
EXECUTIONS: dict[str, Callable[[BlockManager], MakeExecution]] = {
    "in turn": lambda blocks: InTurn,
    "overlapping": lambda blocks: overlapped,
    "lookup": lambda blocks: with_drafts(DRAFTERS["lookup"](blocks), overlap=True),
    "a draft model": lambda blocks: with_drafts(DRAFTERS["one that rests"](blocks), overlap=True),
}
TIGHT = st.builds(Pool, st.integers(1, 5), st.integers(0, 9), st.booleans(), st.just(0.0), st.just(True))


@pytest.mark.parametrize("kind", list(EXECUTIONS))
@settings(max_examples=5, **no_health_checks)
@given(data=st.data())
def test_no_block_that_comes_back_changes_a_token(kind: str, data: st.DataObject) -> None:
    schedule = data.draw(with_features(TIGHT))
    assert schedule.pool is not None
    with TemporaryDirectory() as folder:
        for _ in range(2):  # the second engine finds what the first one has kept
            files = files_in(Path(folder))
            pool = KeptPool.of(schedule.pool, files)
            check_engine_law(replace(schedule, pool=pool), keeping(EXECUTIONS[kind], files))


def engine_on(folder: Path, num_blocks: int = 9) -> KeepingEngine:
    """An engine whose files are in a folder; its prompts have at most 16 tokens."""
    files = files_in(folder)
    blocks = TieredBlockManager(num_blocks, BLOCK_SIZE, False, 0.0, files.load, 2)
    config = SchedulerConfig(8, 2)
    return KeepingEngine(random_qwen3(), IdTokenizer(), config, 20, blocks, files=files)


def blocks_of(engine: KeepingEngine) -> TieredBlockManager[Block]:
    blocks = engine.scheduler.blocks
    assert isinstance(blocks, TieredBlockManager)
    return blocks


def hits(engine: KeepingEngine, prompt: list[int], salt: str | None = None) -> int:
    """How many tokens of a prompt are found in memory and in files."""
    blocks = blocks_of(engine)
    before = blocks.num_hit_tokens
    engine.generate([prompt], SamplingParams(max_tokens=1, cache_salt=salt))
    return blocks.num_hit_tokens - before


def test_a_new_engine_continues_where_memory_ends(tmp_path: Path) -> None:
    prompt = list(range(2, 18))
    with engine_on(tmp_path) as engine:
        check_equal(hits(engine, prompt[:9]), 0, "hits at first")
    with engine_on(tmp_path) as engine:
        check_equal(hits(engine, [*prompt[:5], 20]), 4, "hits of an end of its own")
        check_equal(hits(engine, prompt), 8, "hits in memory and in files")
        check_equal(engine.kept.files.num_loads, 2, "blocks that are read: none twice")
    with engine_on(tmp_path) as engine:
        check_equal(hits(engine, prompt), 15, "hits but for the last token, which is computed")


def test_an_evicted_block_comes_back(tmp_path: Path) -> None:
    prompts = [[first, *range(2, 17)] for first in (20, 21, 22)]
    with engine_on(tmp_path, num_blocks=5) as engine:
        engine.generate(prompts, SamplingParams(max_tokens=1))
        check_equal([hits(engine, prompt) for prompt in prompts], [15, 15, 15], "hits")


def test_what_has_another_salt_is_not_found(tmp_path: Path) -> None:
    prompt, salts = list(range(2, 18)), (None, "a", "b")
    for expected in (0, 15):
        with engine_on(tmp_path) as engine:
            check_equal([hits(engine, prompt, salt) for salt in salts], [expected] * 3, "hits")


def test_others_decode_while_a_prompt_is_restored(tmp_path: Path) -> None:
    prompt = list(range(2, 18))
    with engine_on(tmp_path) as engine:
        hits(engine, prompt)
    with engine_on(tmp_path) as engine:
        stream = engine.add_request([25], SamplingParams(max_tokens=9))
        engine.step()
        number = engine.add_request(prompt, SamplingParams(max_tokens=1))
        steps = [engine.step() for _ in range(2)]
        check_equal([stream in step.sampled for step in steps], [True, True], "whether the stream goes on")
        check_equal([number in step.sampled for step in steps], [False, True], "whether the prompt is done")
        check_equal(engine.kept.files.num_loads, 4, "blocks that are read, at most two in a step")
        check_equal(len(blocks_of(engine).fetched), 0, "contents that are still held")


def test_equal_prompts_share_what_is_restored(tmp_path: Path) -> None:
    prompts = [list(range(2, 18))] * 2
    with engine_on(tmp_path) as engine:
        engine.generate(prompts[:1])
    with engine_on(tmp_path) as engine:
        engine.generate(prompts, SamplingParams(max_tokens=1))
        check_equal(engine.kept.files.num_loads, 4, "blocks that are read")


def test_a_copy_is_stored_only_after_the_step_that_filled_it_has_ended(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    blocks = TieredBlockManager[Block](2, BLOCK_SIZE, False, 0.0, files.load, 9)
    pool = filled_pools()["floats"]
    copies = BlockCopies(blocks, pool, files)
    one, other = Sequence(0, range(4), 0, 5), Sequence(1, range(4, 12), 0, 8)
    blocks.allocate(one, 4)
    copies.before_step()
    one.num_computed_tokens = 4
    blocks.free(one)
    blocks.allocate(other, 8)  # evicts the block of the first
    copies.before_step()
    check_equal(files.num_stores, 0, "files before the step has ended")
    copies.before_step()
    check_equal(files.num_stores, 1, "files after it")
    assert files.load(blocks.prefixes.of(one)[0]) is not None


def test_a_block_is_copied_out_before_it_is_restored_into(tmp_path: Path) -> None:
    files, pool = files_in(tmp_path), filled_pools()["floats"]
    old, new = read_blocks(pool, [0, 1])
    prompts = [Sequence(id, range(4 * id, 4 * id + 4), 0, 4) for id in range(3)]
    contents = dict[Prefix, Block]()
    blocks = TieredBlockManager[Block](1, BLOCK_SIZE, False, 0.0, contents.get, 9)
    copies = BlockCopies(blocks, pool, files)
    prefixes = [blocks.prefixes.of(prompt)[0] for prompt in prompts]
    contents |= dict.fromkeys(prefixes[1:], new)
    blocks.allocate(prompts[0], 4)
    prompts[0].num_computed_tokens = 4
    blocks.free(prompts[0])
    for prompt in prompts[1:]:  # the block of the first is evicted, and that of the second before it is there
        check_equal(blocks.find_prefix(prompt), 3, "tokens that need not be computed")
        blocks.allocate(prompt, 1)
        blocks.free(prompt)
    list(copies.when_idle())
    check_equal(files.num_stores, 0, "blocks that are stored before they are restored")
    for _ in range(2):
        copies.before_step()
    check_equal([files.load(prefix) is not None for prefix in prefixes], [True, False, False], "stored")
    (restored,) = read_blocks(pool, [0])
    for found, expected in ((files.load(prefixes[0]), old), (restored, new)):
        assert found is not None
        assert all((found[name].data == expected[name].data).all() for name in expected)


def filled_pools() -> dict[str, AnyPool]:
    """A pool of each kind with three layers, and random numbers in all of its blocks."""
    plain, quantized = PagedKvPool(3, 5, BLOCK_SIZE), QuantizedKvPool(3, 5, BLOCK_SIZE, 4)
    for layer in range(3):
        rows = [normal(20, 2, 32, seed=seed) for seed in (layer, 9 + layer)]
        plain.write(layer, *rows, mx.arange(20))
        words = [mx.random.randint(0, 2**31 - 1, (5, BLOCK_SIZE, 2, n)).astype(mx.uint32) for n in (9, 5)]
        quantized.restore(layer, mx.arange(5), *words)
        quantized.floats.write(layer, *[each[:1] for each in rows], mx.array([0]))
    return {"floats": plain, "quantized": quantized}


@pytest.mark.parametrize("kind", ["floats", "quantized"])
def test_blocks_are_copied_as_they_are(kind: str) -> None:
    full, other = filled_pools()[kind], filled_pools()[kind]
    other.release()
    restore_blocks(other, dict(zip([4, 0, 2], read_blocks(full, [1, 3, 2]), strict=True)))
    if isinstance(other, QuantizedKvPool):
        for layer in range(3):
            other.floats.write(layer, *[normal(1, 2, 32, seed=seed) for seed in (1, 2)], mx.array([0]))
    for layer in range(3):
        for held, copied in zip(full.blocks(layer)[:2], other.blocks(layer)[:2], strict=True):
            assert mx.array_equal(held[mx.array([1, 3, 2])], copied[mx.array([4, 0, 2])])


def test_salts_and_places_are_part_of_a_name(tmp_path: Path) -> None:
    files, other = files_in(tmp_path, "a model"), files_in(tmp_path, "another")
    blocks = TieredBlockManager[Block](2, 2, False, 0.0, files.load, 9)
    sequences = [Sequence(id, [97, 98, 97, 98]) for id in range(3)]
    for sequence, salt in zip(sequences[1:], ("ab", "a"), strict=True):
        salt_sequence(sequence, salt)
    prefixes = [prefix for sequence in sequences for prefix in blocks.prefixes.of(sequence)]
    paths = {each.path_of(prefix) for each in (files, other) for prefix in prefixes}
    check_equal(len(paths), 12, "different names")
