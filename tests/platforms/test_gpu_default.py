"""The first minutes on a machine whose default device is a GPU, such as every Mac."""

import json
from pathlib import Path

import pytest

from scripts.course import ROOT, load_course
from scripts.sources.files import write
from scripts.sources.render import render
from tests.platforms.gpu_default import ENVIRONMENT, run_on_gpu
from tests.support.rank_servers import rank_server

pytestmark = pytest.mark.sampled(3, "tests/platforms/gpu_default.py")
CHUNK = 8
MODEL = ("--model", "qwen3-kjv-1m")  # the smallest: the emulator takes its time
PROMPTS = ("In the beginning God created the heaven and the earth. And the earth was", "And God", "Blessed")
ENGINES = {
    "batch": ("--prefill-step", str(CHUNK)),
    "serving": ("--engine", "serving", "--budget", str(CHUNK)),
    "serving without blocks": ("--engine", "serving", "--budget", str(CHUNK), "--blocks", "0"),
}


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Prompts of which one has several chunks, so that some chunk is not its last."""
    file = tmp_path / "prompts.json"
    file.write_text(json.dumps(PROMPTS))
    return file


def check_demo(prompts: Path, *options: str, folder: Path = ROOT) -> None:
    __tracebackhide__ = True
    arguments = (
        "scripts.run.demo",
        *MODEL,
        "--prompts",
        str(prompts),
        "--max-tokens",
        "3",
        "--json",
        *options,
    )
    run = json.loads(run_on_gpu(*arguments, folder=folder))
    assert [row["output_tokens"] for row in run["requests"]] == [3] * len(PROMPTS)
    chunks = [event["tokens"]["0"] for event in run["events"] if "0" in event["tokens"]][:2]
    assert chunks[0] <= CHUNK < run["requests"][0]["prompt_tokens"], "the first prompt has several chunks"


@pytest.mark.parametrize("engine", ENGINES)
def test_demo(engine: str, prompts: Path) -> None:
    check_demo(prompts, *ENGINES[engine])


@pytest.mark.parametrize("engine", ["batch", "serving"])
def test_demo_with_the_learner_s_package_after_catch_up(engine: str, prompts: Path, tmp_path: Path) -> None:
    write(render(()), tmp_path / "tiny_llm")
    last = load_course().days[-1]
    day = f"w{last.week}d{last.day}"
    run_on_gpu("scripts.learn.catch_up", "--to", day, "--yes", "--package", str(tmp_path / "tiny_llm"))
    check_demo(prompts, *ENGINES[engine], "--mine", folder=tmp_path)


def test_generate_and_trace(prompts: Path, tmp_path: Path) -> None:
    assert run_on_gpu("scripts.run.generate", "In the beginning", *MODEL, "--max-tokens", "4").strip()
    options = (*MODEL, "--prompts", str(prompts), "--max-tokens", "2", "--out", str(tmp_path / "run.json"))
    run_on_gpu("scripts.run.trace", *options)
    assert json.loads((tmp_path / "run.json").read_text())["totals"]["output_tokens"] == 2 * len(PROMPTS)


def test_serve_on_two_ranks(tmp_path: Path) -> None:
    """Each has its own emulated GPU, and answers as one process on the CPU does."""
    prompt, settings = "And God said", {"temperature": 0, "max_tokens": 4, "model": MODEL[1]}
    texts = []
    for name, environment in (("gpu", ENVIRONMENT), ("cpu", {"TINY_LLM_DEVICE": "cpu"})):
        with rank_server(tmp_path / name, *MODEL, environment=environment) as server:
            texts.append(server.complete(prompt, **settings)["choices"][0]["text"])
            server.process.terminate()
            assert server.end() == 0, server.text
            assert "tiny-llm:" not in server.text, server.text
    assert texts[0] == texts[1]
