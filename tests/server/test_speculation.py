"""Speculation as clients see it: the same answers, and what became of the drafts."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from http_server.app import create_app
from http_server.config import ServerConfig
from http_server.engine_factory import EngineFactory
from http_server.speculation import (
    DraftCounts,
    DrafterFactory,
    SpeculativeDecoding,
    accepted_by_position,
)
from kernel_runtime.checkpoint import load_tokenizer
from tests.server.servers import in_memory
from tiny_llm import BlockManager, CostModel, SchedulerConfig, load
from tiny_llm.speculation.draft_cost import DraftCost, profiled

MODELS = Path(__file__).parents[2] / "models"
MODEL, DRAFT = MODELS / "qwen3-kjv-4m", MODELS / "qwen3-kjv-1m"
PATH = "/v1/completions"
BODY = {
    "model": "m",
    "prompt": "In the beginning God created the heaven and",
    "max_tokens": 24,
    "temperature": 0,
}
CONFIG = SchedulerConfig(max_num_batched_tokens=64)
FREE = DraftCost({1: CostModel(1.0, 0.0)}, CostModel(0.0, 0.0))


def app_with(make_drafter: DrafterFactory | None) -> Any:
    factory = EngineFactory(lambda: load(MODEL), CONFIG, 128, make_drafter=make_drafter)
    most = make_drafter.num_drafts if make_drafter else 0
    config = ServerConfig(("m",), CONFIG, num_speculative_tokens=most)
    return create_app(factory, lambda: load_tokenizer(MODEL), config)


@pytest.mark.parametrize(("max_seq_len", "is_said"), [(200, False), (201, True)])
def test_requests_that_outgrow_the_draft_model_are_announced_once(
    max_seq_len: int, is_said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model, tokenizer = load(MODEL)
    draft, _ = load(DRAFT)
    draft.config = replace(draft.config, max_position_embeddings=200)
    factory = DrafterFactory(3, lambda: (draft, tokenizer))
    factory._cost = FREE
    for _ in range(2):
        factory(model, tokenizer, BlockManager(20), max_seq_len=max_seq_len)
    expected = ["requests of more than 200 tokens get no drafts: the draft model supports no more"]
    assert [record.message for record in caplog.records] == expected * is_said


def test_counts_of_an_answer() -> None:
    counts = DraftCounts()
    for step in [(3, 3), (3, 0), (1, 1), (3, 3)]:
        counts.add(*step)
    described = SpeculativeDecoding.of(counts, 4)
    assert described.mean_acceptance_length == 1 + 7 / 4
    assert described.draft_acceptance_rate == 0.7
    assert described.acceptance_histogram == [1, 1, 0, 2, 0]
    assert described.acceptance_histogram_by_draft_length == {"1": [0, 1], "3": [1, 0, 0, 2]}
    assert (described.num_spec_steps, described.num_accepted_draft_tokens, described.num_draft_tokens) == (
        4,
        7,
        10,
    )


def test_counts_without_drafts() -> None:
    described = SpeculativeDecoding.of(DraftCounts(), 2)
    assert (described.mean_acceptance_length, described.draft_acceptance_rate) == (1, 0)
    assert described.acceptance_histogram == [0, 0, 0]


def test_accepted_drafts_by_position() -> None:
    assert accepted_by_position([(3, 3), (3, 0), (2, 1)]) == {0: 2, 1: 1, 2: 1}


@pytest.mark.parametrize("load_draft", [None, lambda: load(DRAFT)], ids=["lookup", "draft-model"])
def test_answers_with_drafts(load_draft: Any) -> None:
    with in_memory(app_with(None)) as client:
        plain = client.post(PATH, json=BODY).json()
        assert "metrics" not in plain
    make_drafter = DrafterFactory(3, load_draft)
    make_drafter._cost = FREE  # by what is measured on a busy machine, no draft may pay
    with in_memory(app_with(make_drafter)) as client:
        answer = client.post(PATH, json=BODY).json()
        assert answer["choices"] == plain["choices"]
        assert answer["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]
        drafts = answer["metrics"]["speculative_decoding"]
        assert len(drafts["acceptance_histogram"]) == 4
        assert sum(drafts["acceptance_histogram"]) == drafts["num_spec_steps"]
        if load_draft is not None:
            assert 0 < drafts["num_accepted_draft_tokens"] < drafts["num_draft_tokens"]
        text = client.get("/metrics").text
        found = re.search(r"vllm:spec_decode_num_draft_tokens_total{.*} (.*)", text)
        assert found is not None
        assert float(found[1]) == drafts["num_draft_tokens"]
        assert client.post(PATH, json=BODY | {"n": 2}).json()["metrics"] is None
        long = BODY | {"prompt": "And God said. " * 20, "max_tokens": 1}
        assert client.post(PATH, json=long).status_code == 200  # some steps compute a part of the prompt only

        options = {"stream": True, "stream_options": {"include_usage": True}}
        lines = client.post(PATH, json=BODY | options).text.split("\n\n")
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
        assert (
            "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])
            == answer["choices"][0]["text"]
        )
        assert [chunk["metrics"] is not None for chunk in chunks if "metrics" in chunk] == [True]


def test_a_draft_model_with_another_tokenizer_is_refused() -> None:
    class Other:
        def encode(self, text: str) -> list[int]:
            return [1]

    factory = DrafterFactory(3, lambda: (load(DRAFT)[0], Other()))  # type: ignore[arg-type, return-value]
    with pytest.raises(ValueError, match="another tokenizer"):
        EngineFactory(lambda: load(MODEL), CONFIG, 128, make_drafter=factory)()


@pytest.mark.usefixtures("on_cpu")  # an emulated GPU would need minutes
def test_costs_are_measured() -> None:
    for draft in (None, load(DRAFT)[0]):
        cost = profiled(load(MODEL)[0], draft, repeats=1)
        assert all(each.per_step + each.per_token + each.per_context > 0 for each in cost.steps.values())
        assert (cost.draft_pass is None) == (draft is None)
