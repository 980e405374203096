"""What a recorded run says of the engine's pool of blocks: nothing, where it has none."""

from dataclasses import asdict
from typing import Any

from scripts.run.engine_recorder import EngineRecorder


def blocks_text(recorder: EngineRecorder) -> str:
    """In one line: its blocks now, hits and preemptions so far."""
    if recorder.blocks is None:
        return ""
    now, num_hits = recorder.counts_now(), recorder.num_hit_tokens
    num_tokens = num_hits + recorder.metrics.num_prefill_tokens
    preemptions = f"{recorder.num_preemptions} preemption{'' if recorder.num_preemptions == 1 else 's'}"
    return (
        f"blocks of {recorder.blocks.block_size}: {now.used} used, {now.cached} cached, {now.free} free; "
        f"{num_hits} of {num_tokens} tokens found in them; {preemptions}"
    )


def pool_totals(recorder: EngineRecorder) -> dict[str, int]:
    """What it saved and cost over the whole run."""
    if recorder.blocks is None:
        return {}
    return {
        "hit_tokens": recorder.num_hit_tokens,
        "preemptions": recorder.num_preemptions,
        "most_used_blocks": max((counts.used for counts in recorder.block_counts), default=0),
    }


def pool_json(recorder: EngineRecorder) -> dict[str, Any]:
    """Hits and preemptions, and the blocks after each step."""
    if recorder.blocks is None:
        return {}
    return {
        "pool_events": [asdict(event) for event in recorder.pool_events],
        "blocks": [asdict(counts) for counts in recorder.block_counts],
    }
