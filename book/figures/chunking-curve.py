"""Time to first token against the longest gap, by chunk size: a recorded `pdm run bench chunking --sweep`."""

import json
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parents[1]))

from benches.chunk_sweep import Arrival, sweep_chart  # noqa: E402

if __name__ == "__main__":
    recorded = json.loads((FOLDER / "data" / "chunking-curve.json").read_text(encoding="utf-8"))
    runs = {size: [Arrival(**run) for run in arrivals] for size, arrivals in recorded["runs"].items()}
    title = (
        f"A prompt of {recorded['prompt_tokens']} tokens while {recorded['decodes']} decode, by chunk size"
    )
    print(sweep_chart(title, runs, standalone=False))
