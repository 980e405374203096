"""What a recorded run looks like: the live picture, the table at its end, the timeline, and JSON."""

import os
import platform
from importlib.metadata import version
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from scripts.run.engine_recorder import EngineRecorder
from scripts.run.pool_report import blocks_text, pool_json, pool_totals
from scripts.run.recorder import Recorder
from scripts.run.run_log import PhaseEvent

PHASE_MARKS = {"prefill": ("█", "cyan"), "decode": ("•", "green")}
ASCII_MARKS = {"█": "#", "•": "."}


AnyRecorder = Recorder | EngineRecorder


def live_picture(recorder: AnyRecorder, width: int) -> RenderableType:
    """One line a request: number, state, and the end of its text."""
    styles = {"done": "dim", "deco": "green", "pref": "cyan", "pree": "red"}
    table = Table.grid(padding=(0, 2))
    for request, state in zip(recorder.requests, recorder.states, strict=True):
        table.add_row(
            Text(str(request.prompt_idx), style="bold"),
            Text(f"{state:18}", style=styles.get(state[:4], "")),
            Text(last_part(request.text(), width - 30), no_wrap=True, overflow="ellipsis"),
        )
    line = blocks_text(recorder) if isinstance(recorder, EngineRecorder) else ""
    return Group(table, Text(line, style="magenta")) if line else table


def last_part(text: str, width: int) -> str:
    """The end of a text on one line, at most `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else "…" + line[-max(width - 1, 1) :]


def final_report(recorder: AnyRecorder, console: Console) -> RenderableType:
    """Table, totals and timeline of a run that ended."""
    return Group(table(recorder), Text(totals_text(recorder)), "", timeline(recorder, console))


def table(recorder: AnyRecorder) -> Table:
    """One row a request; times as its user felt them."""
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for heading in ("request", "prompt", "output", "TTFT", "ITL p50", "longest", "tokens/s", "ended by"):
        table.add_column(heading, justify="left" if heading == "ended by" else "right", no_wrap=True)
    for row in request_rows(recorder):
        table.add_row(
            str(row["request"]),
            str(row["prompt_tokens"]),
            str(row["output_tokens"]),
            in_ms(row["ttft_s"]),
            in_ms(row["itl_p50_s"]),
            in_ms(row["longest_itl_s"]),
            "-" if row["tokens_per_s"] is None else f"{row['tokens_per_s']:.1f}",
            row["finish_reason"] or "-",
        )
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
    seconds = recorder.events[-1].end if recorder.events else 0.0
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


def timeline(recorder: AnyRecorder, console: Console) -> Text:
    """Time from left to right, one row a request: which slices of time its chunks and decodes fell in."""
    seconds = recorder.events[-1].end if recorder.events else 0.0
    return timeline_rows(recorder, console, seconds).append_text(timeline_scale(console, seconds))


def timeline_rows(recorder: AnyRecorder, console: Console, seconds: float) -> Text:
    """The rows of a timeline that is `seconds` wide."""
    text = Text()
    for request in recorder.requests:
        cells = timeline_cells(recorder.events, request.prompt_idx, seconds, timeline_width(console))
        text.append(f"{request.prompt_idx:>3} ", style="bold")
        for phase in cells:
            mark, style = PHASE_MARKS.get(phase, (" ", ""))
            text.append(mark if is_utf8(console) else ASCII_MARKS.get(mark, mark), style=style)
        text.append("\n")
    return text


def timeline_scale(console: Console, seconds: float) -> Text:
    """Start and end of the time, and what the marks mean."""
    marks = [
        f"{mark if is_utf8(console) else ASCII_MARKS[mark]} {phase}"
        for phase, (mark, _) in PHASE_MARKS.items()
    ]
    return Text(f"    0 s{f'{seconds:.2f} s':>{timeline_width(console) - 3}}\n    {'   '.join(marks)}")


def timeline_width(console: Console) -> int:
    """Slices of time that fit in a line."""
    return max(20, min(console.width, 120) - 4)


def is_utf8(console: Console) -> bool:
    """Whether the marks can be shown as they are."""
    return (console.encoding or "").lower().startswith("utf")


def timeline_cells(events: list[PhaseEvent], request: int, seconds: float, width: int) -> list[str]:
    """The phase that each of `width` slices of time spent on a request, "" where none; chunks win."""
    cells = [""] * width
    if not seconds:
        return cells
    for event in events:
        if request not in event.num_tokens:
            continue
        first, last = (min(int(time / seconds * width), width - 1) for time in (event.start, event.end))
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
