"""Random requests, made from the server's own description: none may fail or get what is not described.

`pdm run author test-clients --cases 5000 --seed 2` tries more of them, and others.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients import SAMPLED

pytestmark = SAMPLED
CHECKS = (
    "not_a_server_error",
    "response_schema_conformance",
    "status_code_conformance",
    "content_type_conformance",
)
NUM_POST = 7
"""Operations with a body, among which the cases are divided."""


def test_random_requests(url_of_short_answers: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    cases = request.config.getoption("--cases")
    options = {
        "checks": ",".join(CHECKS),
        "max-examples": -(-cases // NUM_POST),
        "seed": request.config.getoption("--seed"),
        "warnings": "off",
    }
    result = subprocess.run(
        [
            Path(sys.executable).with_name("schemathesis"),
            "run",
            f"{url_of_short_answers}/openapi.json",
            *(f"--{name}={value}" for name, value in options.items()),
            "--continue-on-failure",
            "--no-color",
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,  # where it keeps its notes
    )
    assert result.returncode == 0, result.stdout + result.stderr
    summary = re.search(r"(\d+) generated, (\d+) passed", result.stdout)
    assert summary is not None, result.stdout
    assert int(summary[1]) == int(summary[2]) > cases
    print(summary[0])
