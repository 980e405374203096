"""`pdm run bench server`: what it counts of the answers, and what is kept of them."""

import json
import math
from pathlib import Path

import pytest

from benches.http_load import Felt, HttpRequest, Sent, send, write_trace


def answered(arrival: float, chunks: list[float]) -> Sent:
    return Sent(arrival, len(chunks), 200, chunks, len(chunks), chunks[-1])


def test_a_run_counts_what_clients_saw() -> None:
    sent = [
        answered(0.0, [0.2 + 0.01 * i for i in range(150)] + [2.3]),
        answered(1.0, [1.4 + 0.02 * i for i in range(50)]),
        answered(2.0, [2.3]),
        Sent(3.0, 5, 429, ended=3.1, retry_after=2.0),
        Sent(3.0, 5, 500, ended=3.2),
        Sent(3.0, 5, 200, [3.1], 1, 3.3),  # shorter than asked for
        Sent(3.0, 5, 200, [3.1], 5, 3.4, error="not answered in time"),
    ]
    felt = Felt.of(sent)
    assert (felt.num_answered, felt.num_refused, felt.num_lost) == (3, 1, 3)
    assert felt.wait_p50 == pytest.approx(0.3)
    assert 0.01 <= felt.gap_p99 <= 0.0201
    assert (felt.retry_after, felt.seconds, felt.num_tokens) == (2.0, 3.4, 202)


def test_a_run_without_answers_never_began() -> None:
    felt = Felt.of([Sent(0.0, 5, 429)])
    assert (felt.wait_p50, felt.gap_p99, felt.num_answered) == (math.inf, 0.0, 0)


def test_a_server_that_is_not_there_loses_requests() -> None:
    (sent,) = send("http://127.0.0.1:9", "m", [HttpRequest("a", 3)], ())
    assert (sent.status, sent.is_answered, sent.is_refused) == (0, False, False)
    assert "Connect" in sent.error


def test_a_trace_has_a_line_per_request(tmp_path: Path) -> None:
    write_trace(tmp_path / "traces" / "run.jsonl", [answered(0.0, [0.2]), Sent(3.0, 5, 429)])
    lines = (tmp_path / "traces" / "run.jsonl").read_text().splitlines()
    assert [json.loads(line)["status"] for line in lines] == [200, 429]
