"""A run as data for a chart of `scripts.chart`."""

import json
import os
from pathlib import Path
from typing import Any

from scripts.hardware.quiet import RECORD
from scripts.run.run_report import AnyRecorder


def write_record(recorder: AnyRecorder) -> None:
    """Write the chart of a run where the book's record asks for one."""
    if file := os.environ.get(RECORD):
        Path(file).write_text(json.dumps(run_chart(recorder)), encoding="utf-8")


def run_chart(recorder: AnyRecorder) -> dict[str, Any]:
    """When each request's chunks began and ended, and when its tokens came, in seconds."""
    rows: list[dict[str, Any]] = [
        {"name": f"prompt of {len(prompt)}", "chunks": [], "tokens": []} for prompt in recorder.prompts
    ]
    for event in recorder.events:
        for index in event.num_tokens if event.phase == "prefill" else ():
            rows[index]["chunks"].append([round(event.start, 4), round(event.end, 4)])
        for index in event.sampled:
            rows[index]["tokens"].append(round(event.end, 4))
    seconds = max((event.end for event in recorder.events), default=0.0)
    title = f"{len(rows)} requests share one model"
    return {"title": title, "width": 640, "seconds": round(seconds, 4), "run": rows}
