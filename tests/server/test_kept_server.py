"""A server whose blocks are kept in files: what it finds there, and what it keeps while it is idle."""

from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from starlette.testclient import TestClient

from http_server.idle_thread import IdleThread
from tests.server.servers import MODEL, app_of, in_memory, wait_for
from tests.support.fakes import FakeModel, prompt_of
from tests.support.server_engines import BLOCK_SIZE, MAX_SEQ_LEN, NUM_BLOCKS, SECONDS, ChatFake, make_engine
from tiny_llm import Engine, SamplingParams, SchedulerConfig, overlapped
from tiny_llm.engine.kept_blocks import KeptBlocks
from tiny_llm.paging.kv_files import KvFiles
from tiny_llm.scheduling.tiered_blocks import TieredBlockManager
from tiny_llm.server.mailbox import Report, StepReport, Stopped

PROMPT = prompt_of(5 * BLOCK_SIZE + 1)


def kept_in(folder: Path) -> KeptBlocks:
    """Blocks of the fake model in a folder."""
    return KeptBlocks(KvFiles(folder, 2**30, "a fake"))


def client_with(kept: KeptBlocks) -> Any:
    """A client of a server whose blocks are kept."""

    def make() -> Engine:
        blocks = TieredBlockManager(NUM_BLOCKS, BLOCK_SIZE, False, 0.0, kept.files.load, 16)
        config, execution = SchedulerConfig(8, 4), kept.execution(overlapped)
        return Engine(FakeModel(), ChatFake(), config, MAX_SEQ_LEN, blocks, execution=execution)

    return in_memory(app_of(make, kept=kept))


def ask(client: TestClient) -> tuple[str, int]:
    """The answer, and how many tokens of the prompt were cached."""
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    answer = client.post("/v1/completions", json=body).json()
    return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_servers_on_one_folder_share_conversations(tmp_path: Path) -> None:
    one, other = kept_in(tmp_path), kept_in(tmp_path)
    with client_with(one) as first, client_with(other) as second:
        text, num_cached = ask(first)
        assert num_cached == 0
        num_blocks = (len(PROMPT) + 7) // BLOCK_SIZE
        wait_for(lambda: one.files.num_stores == num_blocks, "keeping what an idle server has")
        assert ask(second) == (text, 5 * BLOCK_SIZE)
        metrics = second.get("/metrics").text
        assert f'vllm:kv_offload_load_blocks_total{{engine="0",model_name="{MODEL}"}} 5.0' in metrics
        assert f'vllm:kv_offload_load_bytes_total{{engine="0",model_name="{MODEL}"}} ' in metrics


def test_a_server_keeps_everything_before_it_ends(tmp_path: Path) -> None:
    kept = kept_in(tmp_path)
    with client_with(kept) as client:
        text, _ = ask(client)
    kept.files.close()
    with client_with(kept_in(tmp_path)) as client:
        assert ask(client) == (text, 5 * BLOCK_SIZE)


def test_a_request_interrupts_what_an_idle_server_does() -> None:
    """It waits for one piece of that work, and the rest is done later."""
    left, done = [3, 2, 1], SimpleQueue[Report | int]()

    def work() -> Iterator[None]:
        while left:
            if len(left) == 3:
                thread.submit(0, tuple(PROMPT), SamplingParams(max_tokens=1))
            done.put(left.pop())
            yield

    thread = IdleThread(make_engine, done.put, work)
    thread.start()
    seen = [done.get(timeout=SECONDS) for _ in range(3)]
    assert seen[1] == 1
    assert isinstance(seen[2], StepReport)
    thread.stop()
    assert thread.join(SECONDS)
    rest = [done.get_nowait() for _ in range(done.qsize())]
    assert [each for each in rest if isinstance(each, int)] == [2, 3]
    assert isinstance(rest[-1], Stopped)
