"""What the prefix cache tells a client about others: nothing across salts, and no answer depends on it."""

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.server.servers import MODEL, app_of, in_memory
from tests.support.fakes import prompt_of
from tests.support.server_engines import BLOCK_SIZE, ENGINES, make_engine
from tiny_llm import Engine, PrefixCachingBlockManager, SamplingParams, Sequence
from tiny_llm.scheduling.cache_salts import SaltedPrefixes, salt_sequence

PROMPT = prompt_of(5 * BLOCK_SIZE)


def num_hits(engine: Engine, salt: str | None) -> int:
    """How many tokens of the prompt the engine finds."""
    blocks = engine.scheduler.blocks
    assert isinstance(blocks, PrefixCachingBlockManager)
    before = blocks.num_hit_tokens
    engine.generate([PROMPT], SamplingParams(max_tokens=6, cache_salt=salt))
    return blocks.num_hit_tokens - before


@pytest.mark.parametrize("kind", ENGINES)
def test_blocks_are_shared_only_under_the_same_salt(kind: str) -> None:
    most = len(PROMPT) - 1  # one token must be computed
    with ENGINES[kind]() as engine:
        hits = [num_hits(engine, salt) for salt in (None, "a", "b", None, "a", "a ", "b")]
    assert hits == [0, 0, 0, most, most, 0, most]


def test_answers_do_not_depend_on_salts() -> None:
    with make_engine() as engine:
        params = [SamplingParams(max_tokens=6, cache_salt=salt) for salt in (None, "a", "a", "b")]
        answers = {each.token_ids for each in engine.generate([PROMPT] * len(params), params)}
    assert len(answers) == 1


def test_a_salt_is_part_of_every_hash_and_forgotten_with_the_last_prefix() -> None:
    prefixes = SaltedPrefixes(2)
    plain, salted, again, other = (Sequence(id, [1, 2, 3, 4]) for id in range(4))
    for sequence, salt in ((salted, "a"), (again, "a"), (other, "b")):
        salt_sequence(sequence, salt)
    chains = [prefixes.of(each) for each in (plain, salted, again, other)]
    assert chains[1] == chains[2]
    for place in range(2):
        assert len({chain[place].hash for chain in chains}) == 3
    chains.clear()
    del salted, again, sequence
    assert list(prefixes.salts) == ["b"]


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with in_memory(app_of()) as client:
        yield client


ENDPOINTS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": PROMPT[:12]},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "ABCDEFGHIJKL"}]},
    "/v1/responses": {"input": "MNOPQRSTUVWXYZ"},
    "/v1/messages": {"messages": [{"role": "user", "content": "LKJIHGFEDCBA"}], "max_tokens": 4},
}


@pytest.mark.parametrize("path", ENDPOINTS)
def test_clients_may_choose_a_salt(client: TestClient, path: str) -> None:
    def num_cached(**fields: Any) -> int:
        response = client.post(path, json={"model": MODEL, **ENDPOINTS[path], **fields})
        assert response.status_code == 200, response.text
        usage = response.json()["usage"]
        details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or usage
        number: int = details["cache_read_input_tokens" if details is usage else "cached_tokens"]
        return number

    assert [num_cached(cache_salt=salt) > 0 for salt in (None, "a", "a", "b", None)] == [
        False,
        False,
        True,
        False,
        True,
    ]


@pytest.mark.parametrize("salt", ["", 5])
def test_an_empty_salt_is_refused(client: TestClient, salt: Any) -> None:
    response = client.post("/v1/completions", json={"model": MODEL, "prompt": PROMPT, "cache_salt": salt})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "cache_salt")
