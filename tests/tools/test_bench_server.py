"""`pdm run bench server`: what it counts, and a short run over HTTP."""

import math
import subprocess
import sys

import pytest

from benches.server import FULL, Outcome, Run
from scripts.course import ROOT


def test_a_run_counts_what_clients_saw() -> None:
    outcomes = [
        Outcome(200, 0.2, [0.01] * 150 + [0.5]),
        Outcome(200, 0.4, [0.02] * 50),
        Outcome(200, 0.3),
        Outcome(FULL, math.inf, [], 2.0),
        Outcome(500),
    ]
    run = Run(3.0, outcomes)
    assert (len(run.answered), run.num_refused) == (3, 1)
    assert run.ttft_ms == pytest.approx(300)
    assert 10 <= run.gap_ms <= 20


def test_a_run_without_answers_has_no_times() -> None:
    assert (Run(1.0, [Outcome(FULL)]).gap_ms, Run(1.0, []).ttft_ms) == (0.0, 0.0)


def test_rates_are_tried_and_the_crowd_is_served_or_refused() -> None:
    command = [
        sys.executable,
        "-m",
        "benches",
        "server",
        "--seconds",
        "0.5",
        "--highest",
        "4",
        "--queue",
        "0",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "requests/s" in done.stdout
    assert "twice that" in done.stdout
    assert "blocks in use afterwards: 0%" in done.stdout
