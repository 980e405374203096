"""What recorded runs look like: a table of figures, timelines, and JSON."""

import math
import os
import platform
from importlib.metadata import version
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from scripts.run.engine_recorder import EngineRecorder
from scripts.run.pool_report import blocks_text, pool_json, pool_totals
from scripts.run.recorder import Recorder
from scripts.run.run_log import PhaseEvent

PHASE_MARKS = {"prefill": ("█", "cyan"), "decode": ("•", "green")}
ASCII_MARKS = {"█": "#", "•": "."}


TIMES = {"TTFT": "ttft_s", "ITL p50": "itl_p50_s", "longest": "longest_itl_s"}

AnyRecorder = Recorder | EngineRecorder
Runs = dict[str, AnyRecorder]
"""Runs of the same prompts by the names they are shown under; the first word is that of a column."""


def final_report(runs: Runs, console: Console, has_timelines: bool = True) -> Group:
    """The table of one run or of several, then for each its totals and its timeline, all on one scale."""
    seconds = max(map(seconds_of, runs.values()))
    parts: list[str | Table | Text] = [table(runs)]
    for name, recorder in runs.items():
        if len(runs) > 1:
            parts += ["", Text(name, style="bold")]
        parts.append(Text(totals_text(recorder)))
        if has_timelines:
            parts += [""] if len(runs) == 1 else []
            parts.append(timeline_rows(recorder, console, seconds))
    if has_timelines:
        parts.append(timeline_scale(console, seconds, timeline_width(console)))
    return Group(*parts)


def seconds_of(recorder: AnyRecorder) -> float:
    """How long a run took."""
    return recorder.events[-1].end if recorder.events else 0.0


def table(runs: Runs) -> Table:
    """One row a request; times as its user felt them, those of several runs side by side."""
    rows_of = {name: request_rows(recorder) for name, recorder in runs.items()}
    is_alone = len(runs) == 1
    first = next(iter(rows_of.values()))
    columns = {
        heading: [str(row[key]) for row in first]
        for heading, key in (("request", "request"), ("prompt", "prompt_tokens"), ("output", "output_tokens"))
    }
    for heading, key in TIMES.items():
        for name, rows in rows_of.items():
            full = heading if is_alone else f"{heading}\n{name.split()[0]}"
            columns[full] = [in_ms(row[key]) for row in rows]
    if is_alone:
        rates = [row["tokens_per_s"] for row in first]
        columns["tokens/s"] = ["-" if rate is None else f"{rate:.1f}" for rate in rates]
        columns["ended by"] = [row["finish_reason"] or "-" for row in first]
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for heading in columns:
        table.add_column(heading, justify="left" if heading == "ended by" else "right", no_wrap=True)
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*cells)
    return table


def in_ms(seconds: float | None) -> str:
    """Milliseconds for the table; a dash for what did not happen."""
    return "-" if seconds is None else f"{seconds * 1000:.0f} ms"


def request_rows(recorder: AnyRecorder) -> list[dict[str, Any]]:
    """The figures of each request, times in seconds, None for what did not happen."""
    metrics = recorder.metrics
    rows = []
    for request, prompt in zip(recorder.requests, recorder.prompts, strict=True):
        index = request.prompt_idx
        gaps = metrics.gaps(index)
        rows.append(
            {
                "request": index,
                "prompt_tokens": len(prompt),
                "output_tokens": len(request.token_ids),
                "ttft_s": metrics.ttft(index),
                "itl_p50_s": metrics.gap_percentile(50, index),
                "longest_itl_s": max(gaps, default=None),
                "tokens_per_s": len(gaps) / sum(gaps) if gaps else None,
                "finish_reason": request.finish_reason,
            }
        )
    return rows


def totals(recorder: AnyRecorder) -> dict[str, Any]:
    """The figures of the whole run."""
    seconds = seconds_of(recorder)
    num_output = sum(len(request.token_ids) for request in recorder.requests)
    return {
        "seconds": seconds,
        "steps": recorder.num_steps,
        "prefill_chunks": recorder.metrics.num_chunks,
        "prompt_tokens": sum(map(len, recorder.prompts)),
        "prefill_tokens": recorder.metrics.num_prefill_tokens,
        "output_tokens": num_output,
        "output_tokens_per_s": num_output / seconds if seconds else None,
        "itl_p99_s": recorder.metrics.gap_percentile(99),
        "longest_itl_s": recorder.metrics.gap_percentile(100),
        **(pool_totals(recorder) if isinstance(recorder, EngineRecorder) else {}),
    }


def totals_text(recorder: AnyRecorder) -> str:
    """The whole run in two lines, and one of an engine's blocks."""
    run = totals(recorder)
    pool = blocks_text(recorder) if isinstance(recorder, EngineRecorder) else ""
    rate = run["output_tokens_per_s"]
    return (
        f"{run['prefill_tokens']} prompt tokens in {run['prefill_chunks']} chunks, "
        f"{run['output_tokens']} output tokens in {run['seconds']:.2f} s: "
        f"{'-' if rate is None else f'{rate:.1f}'} tokens/s\n"
        f"gap between tokens: p99 {in_ms(run['itl_p99_s'])}, longest {in_ms(run['longest_itl_s'])}"
        + (f"\n{pool}; most in use {run['most_used_blocks']}" if pool else "")
    )


def timeline_rows(recorder: AnyRecorder, console: Console, seconds: float) -> Text:
    """Time from left to right, `seconds` wide, and a row per request: its chunks and its decodes."""
    width = timeline_width(console)
    rows = (
        Text.assemble(
            (f"{index:>3} ", "bold"), marks(timeline_cells(recorder.events, index, seconds, width), console)
        )
        for index in (request.prompt_idx for request in recorder.requests)
    )
    return Text("\n").join(rows)


def marks(cells: list[str], console: Console) -> Text:
    """The cells of a row as they are shown."""
    text = Text()
    for phase in cells:
        mark, style = PHASE_MARKS.get(phase, (" ", ""))
        text.append(mark if is_utf8(console) else ASCII_MARKS.get(mark, mark), style=style)
    return text


def timeline_scale(console: Console, seconds: float, width: int) -> Text:
    """Start and end of the time below `width` cells, and what the marks mean."""
    legend = [
        f"{mark if is_utf8(console) else ASCII_MARKS[mark]} {phase}"
        for phase, (mark, _) in PHASE_MARKS.items()
    ]
    return Text(f"    0 s{f'{seconds:.2f} s':>{width - 3}}\n    {'   '.join(legend)}")


def timeline_width(console: Console) -> int:
    """Slices of time that fit in a line."""
    return max(20, min(console.width, 120) - 4)


def is_utf8(console: Console) -> bool:
    """Whether the marks can be shown as they are."""
    return (console.encoding or "").lower().startswith("utf")


def timeline_cells(
    events: list[PhaseEvent], request: int, seconds: float, width: int, until: float = math.inf
) -> list[str]:
    """The phase that each of `width` slices of `seconds` spent on a request, "" where none; chunks win.

    What comes after `until` is left out.
    """
    cells = [""] * width
    if not seconds:
        return cells
    for event in events:
        if request not in event.num_tokens or event.start > until:
            continue
        ends = (event.start, min(event.end, until))
        first, last = (min(int(time / seconds * width), width - 1) for time in ends)
        for i in range(first, last + 1):
            if cells[i] != "prefill":
                cells[i] = event.phase
    return cells


def as_json(recorder: AnyRecorder, settings: dict[str, Any]) -> dict[str, Any]:
    """The run for programs: settings, figures, texts and every event; times in seconds."""
    rows = request_rows(recorder)
    for row, request in zip(rows, recorder.requests, strict=True):
        row.update(text=request.text(), token_ids=request.token_ids)
    return {
        "settings": settings,
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "mlx": version("mlx")},
        "totals": totals(recorder),
        "requests": rows,
        "events": [
            {
                "step": event.step,
                "phase": event.phase,
                "start_s": event.start,
                "end_s": event.end,
                "tokens": {str(request): tokens for request, tokens in event.num_tokens.items()},
                "first": {str(request): start for request, start in event.starts.items()},
                "sampled": list(event.sampled),
            }
            for event in recorder.events
        ],
        **(pool_json(recorder) if isinstance(recorder, EngineRecorder) else {}),
    }
