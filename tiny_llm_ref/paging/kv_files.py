"""Blocks in the files of a folder, which several servers may share, and which outlives them."""

import logging
import os
import shutil
import threading
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from uuid import uuid4

from ..scheduling.block_hashes import Prefix
from ..scheduling.content_hashes import ContentHashes
from .block_file import Block, read_block, write_block

NUM_QUEUED = 64
"""Largest number of blocks that wait to be written. They are in memory meanwhile."""
SHARE_PER_SCAN = 1 / 16
"""Fraction of the limit that is written before the files are counted again: others may have written too."""
SHARE_KEPT = 0.9
"""Fraction of the limit that is left when files are deleted, so that it happens seldom."""
ROOM_ON_DISK = 64 * 2**20
"""After a failure, blocks are written again once the disk has this much room."""
SUFFIX = ".safetensors"
OWN = "[0-9a-f][0-9a-f]/" + 64 * "[0-9a-f]" + ".*"
"""The names of all files that are made here, finished or not."""
log = logging.getLogger("tiny_llm.server")


class KvFiles:
    """Keep each block in a file, under a name made of the model, the format and all tokens up to its end.

    A file appears under its name only when it is complete, and is read only if its checksum is right. So
    servers may share the folder, and may be killed at any time. A thread of its own writes the files. It
    writes all that wait when the process exits.

    Args:
        folder: is made if it doesn't exist.
        max_bytes: of all blocks in the folder together; those that were used least recently are deleted.
        identity: of the model and the format of its blocks. Files of others are not found.
        writer: runs the writes, one after the other; a thread by default.

    Attributes:
        num_loads, num_load_bytes: blocks that were read, and their bytes.
        num_stores, num_store_bytes: blocks that were written, and their bytes.
        num_skipped: blocks that could not be written, or for which too many others were waiting.

    Raises:
        ValueError: the folder cannot be written to (shows the reason).
    """

    def __init__(self, folder: Path, max_bytes: int, identity: str, writer: Executor | None = None) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self.num_loads = self.num_load_bytes = 0
        self.num_stores = self.num_store_bytes = 0
        self.num_skipped = 0
        self._hashes = ContentHashes(identity)
        self._writer = ThreadPoolExecutor(1, "kv-files") if writer is None else writer
        self._room = threading.Semaphore(NUM_QUEUED)
        self._queued: set[Path] = set()
        self._is_failing = False
        self._part = f".{uuid4().hex}"  # no other server has it
        try:
            folder.mkdir(0o700, parents=True, exist_ok=True)
            with NamedTemporaryFile(dir=folder):
                pass
            self._num_left = self._bytes_to_scan()
        except OSError as error:
            raise ValueError(
                f"cannot keep blocks in {folder}: {error.strerror}; choose another --kv-cache-dir"
            ) from None

    def path_of(self, prefix: Prefix) -> Path:
        """The file of a prefix's last block."""
        name = self._hashes.of(prefix).hex()
        return self.folder / name[:2] / (name + SUFFIX)

    def load(self, prefix: Prefix) -> Block | None:
        """Read the last block of a prefix. Return None if there is no such file, or it is damaged."""
        path = self.path_of(prefix)
        try:
            block, num_bytes = read_block(path)
        except OSError:
            return None
        except ValueError:
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):  # another server may have deleted it
            os.utime(path)
        self.num_loads += 1
        self.num_load_bytes += num_bytes
        return block

    def wants(self, prefix: Prefix) -> bool:
        """Whether to store the last block of a prefix. If its file exists, mark that as used."""
        path = self.path_of(prefix)
        if path in self._queued or self._is_full():
            return False
        try:
            os.utime(path)
        except OSError:
            return True
        return False

    def store(self, prefix: Prefix, block: Block, timeout: float = 0.0) -> bool:
        """Let the thread write the last block of a prefix, unless too many blocks are waiting already.

        Args:
            prefix, block: what to write.
            timeout: seconds to wait for room; without it, the block counts as skipped.

        Returns:
            Whether the block is written or waits for it.
        """
        if not self._room.acquire(timeout=timeout):
            self.num_skipped += not timeout
            return False
        path = self.path_of(prefix)
        self._queued.add(path)
        self._writer.submit(self._write, path, block)
        return True

    def close(self) -> None:
        """Write all that wait, and end the thread."""
        self._writer.shutdown()

    def _write(self, path: Path, block: Block) -> None:
        """Write a file under another name, then give it its own. Runs in the thread."""
        part = path.with_suffix(self._part)
        try:
            path.parent.mkdir(0o700, exist_ok=True)
            num_bytes = write_block(part, block)
            os.replace(part, path)
            self._is_failing = False
            self.num_stores += 1
            self.num_store_bytes += num_bytes
            self._num_left -= num_bytes
            if self._num_left < 0:
                self._num_left = self._bytes_to_scan()
        except OSError as error:
            with suppress(OSError):
                part.unlink()
            self.num_skipped += 1
            if not self._is_failing:
                self._is_failing = True
                log.warning("cannot write to %s: %s; blocks are not kept until that ends", self.folder, error)
        finally:
            self._queued.discard(path)
            self._room.release()

    def _is_full(self) -> bool:
        """Whether the last write has failed, and the disk has too little room to try again."""
        if not self._is_failing:
            return False
        try:
            return shutil.disk_usage(self.folder).free < ROOM_ON_DISK
        except OSError:
            return True

    def _bytes_to_scan(self) -> float:
        """Delete what exceeds the limit. Return how many bytes may be written before the next call."""
        files = []
        for path in self.folder.glob(OWN):
            with suppress(OSError):  # another server has deleted it
                stat = path.stat()
                files.append((stat.st_mtime_ns, stat.st_size, path))
        total = sum(size for _, size, _ in files)
        if total > self.max_bytes:
            for _, size, path in sorted(files):
                with suppress(OSError):
                    path.unlink()
                total -= size
                if total <= SHARE_KEPT * self.max_bytes:
                    break
        return min(self.max_bytes - total, SHARE_PER_SCAN * self.max_bytes)
