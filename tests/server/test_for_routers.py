"""What routers ask of a server, beside requests for text."""

from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from http_server import VERSION
from tests.server.servers import MODEL, app_of, client_of, in_memory, on_socket, wait_for
from tests.support.server_engines import BLOCK_SIZE, MAX_SEQ_LEN, NUM_BLOCKS, GatedModel, make_engine

MODEL_INFO = {
    "served_model_name": MODEL,
    "max_model_len": MAX_SEQ_LEN,
    "vocab_size": 61,
    "is_generation": True,
}
SERVER_INFO = {
    "served_model_name": MODEL,
    "version": VERSION,
    "max_model_len": MAX_SEQ_LEN,
    "max_total_tokens": NUM_BLOCKS * BLOCK_SIZE,
    "max_running_requests": 4,
    "max_num_reqs": 260,
    "dp_size": 1,
}


def loads(url: str) -> list[dict[str, int]]:
    found: list[dict[str, int]] = httpx2.get(f"{url}/get_load").json()
    return found


@pytest.mark.parametrize("prefix", ["/", "/get_"])
def test_names_and_limits(prefix: str) -> None:
    app = app_of()
    with in_memory(app) as client:
        assert client.get(f"{prefix}server_info").json() == SERVER_INFO
        assert client.get(f"{prefix}model_info").json() == MODEL_INFO
        client_of(app).begin_draining()
        for name in ("server_info", "model_info"):
            assert client.get(f"{prefix}{name}").status_code == 503


def test_load() -> None:
    """A request that runs and two that wait count with all their tokens until they end."""
    model = GatedModel()
    body = {"model": MODEL, "max_tokens": 3, "ignore_eos": True}
    with (
        on_socket(app_of(lambda: make_engine(model=model, max_num_seqs=1))) as url,
        ThreadPoolExecutor() as pool,
    ):
        assert loads(url) == [{"num_reqs": 0, "num_waiting_reqs": 0, "num_tokens": 0, "dp_rank": 0}]
        answers = [pool.submit(httpx2.post, f"{url}/v1/completions", json=body | {"prompt": "HELLO"})]
        assert model.is_waiting.acquire(timeout=60)
        for prompt in ("AB", "ABC"):
            answers.append(pool.submit(httpx2.post, f"{url}/v1/completions", json=body | {"prompt": prompt}))
        wait_for(lambda: loads(url)[0]["num_reqs"] == 3)
        model.next_step()
        wait_for(lambda: loads(url)[0]["num_tokens"] == 5 + 1 + 2 + 3)
        load = loads(url)
        model.gate.release(100)
        assert load == [{"num_reqs": 3, "num_waiting_reqs": 2, "num_tokens": 11, "dp_rank": 0}]
        assert [answer.result().status_code for answer in answers] == [200, 200, 200]
        assert loads(url)[0]["num_reqs"] == 0
