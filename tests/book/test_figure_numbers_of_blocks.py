"""What the figure of the block pool says is what the block manager does."""

import re
from pathlib import Path

from playwright.sync_api import Browser

from tests.book.figure_pages import Shown, show
from tiny_llm import BlockManager, Sequence, slot_mapping


def check_shown(shown: Shown, blocks: BlockManager, sequences: list[Sequence], chosen: int) -> None:
    """Summary and table, for sequences of which everything is stored."""
    given, reserved = blocks.num_used_blocks, blocks.num_reserved
    free = blocks.num_free_blocks - reserved
    stored = sum(each.num_computed_tokens for each in sequences)
    room = given * blocks.block_size
    expected = f"{given} of {blocks.num_blocks} blocks given, {reserved} reserved, {free} free. "
    expected += f"{stored} tokens in the {room} slots given: {room - stored} slot"
    assert shown.summary.startswith(expected)
    (sequence,) = (each for each in sequences if each.id == chosen)
    rows = []
    for i, block in enumerate(blocks.tables[chosen].block_ids):
        start = i * blocks.block_size
        count = min(blocks.block_size, sequence.num_computed_tokens - start)
        slots = slot_mapping(blocks.tables[chosen].block_ids, blocks.block_size, start, count).tolist()
        rows.append([str(i), str(block), span(start, start + count - 1), span(slots[0], slots[-1])])
    assert shown.rows() == rows


def span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


def test_joining_decoding_and_leaving(browser: Browser, tmp_path: Path) -> None:
    element = '<block-pool blocks="11" block-size="3" prompts="8 2" join="5" answer="4"></block-pool>'
    shown = show(browser, tmp_path, element)
    blocks = BlockManager(11, 3)
    sequences = [
        Sequence(id, range(length), max_num_tokens=length + 4) for id, length in enumerate((8, 2, 5))
    ]

    def compute(sequence: Sequence, num_tokens: int) -> None:
        assert blocks.allocate(sequence, num_tokens)
        sequence.num_computed_tokens += num_tokens

    for sequence in sequences[:2]:
        compute(sequence, sequence.num_tokens)
    check_shown(shown, blocks, sequences[:2], 0)
    shown.control("joins").click()
    compute(sequences[2], 5)
    check_shown(shown, blocks, sequences, 2)
    for _ in range(3):
        shown.control("decode").click()
        for sequence in sequences:
            compute(sequence, 1)
        check_shown(shown, blocks, sequences, 2)
    shown.slide("shown", "ArrowLeft")
    check_shown(shown, blocks, sequences, 1)
    shown.control("joins").click()
    assert "It waits: it may need 3 blocks, and 2 are free" in shown.figure.inner_text()
    shown.control("leave-0").click()
    blocks.free(sequences.pop(0))
    check_shown(shown, blocks, sequences, 1)
    assert re.search(r"Sequence 0 left: blocks [\d, ]+ put back", shown.figure.inner_text())
    shown.control("decode").click()
    for sequence in sequences:
        compute(sequence, 1)
    check_shown(shown, blocks, sequences, 1)
    assert shown.control("decode").is_disabled()
    for id in (1, 2):
        shown.control(f"leave-{id}").click()
    assert "0 of 11 blocks given, 0 reserved, 11 free" in shown.summary
    assert "No sequence is running." in shown.figure.inner_text()
    shown.control("restart").click()
    assert "4 of 11 blocks given" in shown.summary
    assert shown.complaints == []


def test_sizes_are_the_sliders(browser: Browser, tmp_path: Path) -> None:
    shown = show(
        browser, tmp_path, '<block-pool blocks="7" block-size="2" prompts="3" answer="1"></block-pool>'
    )
    assert shown.summary.startswith("2 of 7 blocks given, 0 reserved, 5 free")
    shown.slide("block-size", "ArrowRight")
    assert shown.summary.startswith("1 of 7 blocks given, 1 reserved, 5 free")
    shown.slide("blocks", "ArrowRight")
    assert shown.summary.startswith("1 of 8 blocks given, 1 reserved, 6 free")
    shown.slide("answer", "ArrowRight")
    shown.slide("join", "Home")
    assert shown.control("joins").inner_text() == "A prompt of 1 joins"
    shown.control("joins").click()
    assert shown.summary.startswith("2 of 8 blocks given, 1 reserved, 5 free")
    assert shown.complaints == []
