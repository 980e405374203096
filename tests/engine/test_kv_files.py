"""The files of blocks: complete or absent, whatever happens to the process, the disk or the files."""

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.support.check import check_equal
from tests.support.kept import files_in
from tiny_llm import PrefixCachingBlockManager, Sequence
from tiny_llm.paging import kv_files
from tiny_llm.paging.block_file import Block, Packed
from tiny_llm.paging.kv_files import KvFiles
from tiny_llm.paging.kv_identity import kv_identity

ROOT = Path(__file__).parents[2]
CHAIN = PrefixCachingBlockManager(1, 1).prefixes.of(Sequence(0, range(3000)))
"""Prefixes of one token, of two, and so on."""


def block_of(number: int, size: int = 8) -> Block:
    """A block whose bytes are made of a number."""
    keys = np.full(4 * size, number % 251, np.uint8)
    return {"keys": Packed("F32", (1, size), keys), "values": Packed("BF16", (2, size), keys + 1)}


def is_block(found: Block | None, number: int, size: int = 8) -> bool:
    """Whether that block was found; False if none was. Fails for anything else."""
    if found is None:
        return False
    for name, (dtype, shape, data) in block_of(number, size).items():
        assert (dtype, shape) == found[name][:2]
        assert np.array_equal(data, found[name].data)
    return True


def paths_in(folder: Path) -> list[Path]:
    """All files, at whatever depth."""
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_block_is_found_by_all_tokens_up_to_its_end_and_its_model(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    files.store(CHAIN[2999], block_of(1))  # so long a chain must not be too deep
    assert is_block(files_in(tmp_path).load(CHAIN[2999]), 1)
    check_equal(
        files.path_of(CHAIN[2999]).parent.stat().st_mode & 0o77, 0, "what others may do in the folder"
    )
    for stranger, prefix in ((files, CHAIN[2998]), (files_in(tmp_path, "other weights"), CHAIN[2999])):
        assert stranger.load(prefix) is None


def test_a_damaged_file_is_a_miss_and_deleted(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    files.store(CHAIN[0], block_of(7))
    path = files.path_of(CHAIN[0])
    whole = path.read_bytes()
    num_found = 0
    for place in range(len(whole)):
        for damaged in (whole[:place], whole[:place] + bytes([whole[place] ^ 2]) + whole[place + 1 :]):
            path.write_bytes(damaged)
            if is_block(files.load(CHAIN[0]), 7):
                num_found += 1
            else:
                assert not path.exists(), "the file is still there"
    assert num_found < 10, "only spaces behind the header may differ"


def test_the_files_used_least_recently_are_deleted(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    for number in range(8):
        files.store(CHAIN[number], block_of(number))
        os.utime(files.path_of(CHAIN[number]), ns=(number, number))
    foreign = [tmp_path / name for name in ("model.safetensors", "ab/model.safetensors", "ab/notes")]
    (tmp_path / "ab").mkdir(exist_ok=True)
    for path in foreign:
        path.write_bytes(b"kept")
        os.utime(path, ns=(0, 0))
    size = len(files.path_of(CHAIN[0]).read_bytes())
    assert files.load(CHAIN[0]) is not None
    assert not files.wants(CHAIN[1]), "what exists is not stored again, but counts as used"
    limited = files_in(tmp_path, max_bytes=5 * size)
    check_equal(
        [limited.load(CHAIN[i]) is not None for i in range(8)], [True, True, *[False] * 4, True, True], "kept"
    )
    for number in range(40):
        limited.store(CHAIN[number], block_of(number))
        assert sum(path.stat().st_size for path in paths_in(tmp_path)) <= 6 * size
    assert all(path.exists() for path in foreign), "only blocks may be deleted"
    assert is_block(limited.load(CHAIN[39]), 39)


@contextmanager
def disk_with(num_bytes: int) -> Iterator[None]:
    """No file may become longer than that, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_said_once_and_tried_again_when_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = files_in(tmp_path)
    files.store(CHAIN[9], block_of(9))
    with disk_with(100):
        for number in (0, 1, 9):
            files.store(CHAIN[number], block_of(number))
    assert is_block(files.load(CHAIN[9]), 9), "a file that was whole is not lost"
    check_equal(len(paths_in(tmp_path)), 1, "files that are left")
    (record,) = [each for each in caplog.records if each.name == "tiny_llm.server"]
    assert "blocks are not kept until that ends" in record.getMessage()
    with monkeypatch.context() as patch:
        patch.setattr(kv_files, "ROOM_ON_DISK", 2**62)
        assert not files.wants(CHAIN[0]), "the disk has no room yet"
    assert files.wants(CHAIN[0])
    files.store(CHAIN[0], block_of(0))
    assert is_block(files.load(CHAIN[0]), 0)
    check_equal((files.num_stores, files.num_skipped), (2, 3), "blocks that were stored and skipped")


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"cannot keep blocks in .*file: .*; choose another --kv-cache-dir"):
        files_in(tmp_path / "file")


def test_what_is_queued_is_bounded_and_written_in_the_end(tmp_path: Path) -> None:
    started, go_on = threading.Event(), threading.Event()
    files = KvFiles(tmp_path, 2**30, "a model")
    files._writer.submit(lambda: (started.set(), go_on.wait(60)))
    started.wait(60)
    stored = [files.store(CHAIN[number], block_of(number)) for number in range(kv_files.NUM_QUEUED + 2)]
    assert not files.wants(CHAIN[0]), "it is queued already"
    go_on.set()
    files.close()
    check_equal(stored, [True] * kv_files.NUM_QUEUED + [False] * 2, "whether each is stored")
    check_equal((files.num_stores, files.num_skipped), (kv_files.NUM_QUEUED, 2), "stored and skipped")


def test_servers_share_a_folder(tmp_path: Path) -> None:
    servers = [files_in(tmp_path, max_bytes=4000) for _ in range(3)]
    num_found = [0, 0, 0]

    def work(which: int) -> None:
        for turn in range(80):
            number = (turn * (which + 3)) % 20
            servers[which].store(CHAIN[number], block_of(number))
            num_found[which] += is_block(servers[which].load(CHAIN[(number * 7) % 20]), (number * 7) % 20)

    threads = [threading.Thread(target=work, args=(which,)) for which in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(num_found), num_found


WRITER = """
import sys
from pathlib import Path
from scripts.packages import choose_package
choose_package(True)
from tests.engine.test_kv_files import CHAIN, block_of
from tiny_llm.paging.kv_files import KvFiles
files = KvFiles(Path(sys.argv[1]), 2**30, "a model")
for number in range(3000):
    files.store(CHAIN[number], block_of(number, 30_000), 60)
"""


def test_a_process_killed_while_it_writes_leaves_whole_blocks(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], cwd=ROOT)
    try:
        end = time.monotonic() + 60
        while len(paths_in(tmp_path)) < 20:
            assert time.monotonic() < end
            assert process.poll() is None
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    files = files_in(tmp_path)
    found = [is_block(files.load(CHAIN[number]), number, 30_000) for number in range(3000)]
    assert sum(found) >= 19, "blocks that were written before"
    check_equal(found, sorted(found, reverse=True), "whether each is found, in the order of writing")


def test_the_identity_of_a_model(tmp_path: Path) -> None:
    config, weights = tmp_path / "config.json", tmp_path / "model.safetensors"
    config.write_text("{}")
    weights.write_bytes(b"12")
    os.utime(weights, ns=(1, 1))
    seen = {kv_identity(tmp_path, None, bits, size) for bits in (None, "8", "4") for size in (16, 32)}
    assert kv_identity(tmp_path, None, None, 16) in seen
    check_equal(len(seen), 6, "identities by format")
    for change in (
        lambda: config.write_text('{"rope_theta": 1}'),
        lambda: weights.write_bytes(b"123"),
        lambda: os.utime(weights, ns=(1, 2)),
        lambda: weights.rename(tmp_path / "other.safetensors"),
    ):
        change()
        identity = kv_identity(tmp_path, None, None, 16)
        assert identity not in seen, "another model has the same identity"
        seen.add(identity)
