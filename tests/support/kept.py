"""Engines whose blocks are kept in files, for the random schedules."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tests.support.schedules import MAX_SEQ_LEN, Pool
from tiny_llm import BlockManager, Engine, EngineStep, InTurn
from tiny_llm.engine.execution import MakeExecution
from tiny_llm.engine.kept_blocks import KeptBlocks
from tiny_llm.paging.block_file import Block
from tiny_llm.paging.kv_files import KvFiles
from tiny_llm.scheduling.tiered_blocks import TieredBlockManager

MAX_FETCHES = 2


class AtOnce(Executor):
    """Runs everything at once, so that a test need not wait."""

    def submit(self, run: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        future = Future[Any]()
        future.set_result(run(*args, **options))
        return future


def files_in(folder: Path, identity: str = "a model", max_bytes: int = 2**30) -> KvFiles:
    """Files that are written at once."""
    return KvFiles(folder, max_bytes, identity, AtOnce())


@dataclass(frozen=True)
class KeptPool(Pool):
    """A pool with prefix caching whose blocks are kept in files."""

    files: KvFiles | None = None

    @classmethod
    def of(cls, pool: Pool, files: KvFiles) -> "KeptPool":
        """The same pool, with files."""
        return cls(*[getattr(pool, field.name) for field in fields(pool)], files)

    def make(self) -> TieredBlockManager[Block]:
        assert self.files is not None
        num_blocks = -(-MAX_SEQ_LEN // self.block_size) + self.num_spare_blocks
        sizes = num_blocks, self.block_size, self.overcommit, self.watermark
        return TieredBlockManager(*sizes, self.files.load, MAX_FETCHES)


class KeepingEngine(Engine):
    """An engine that keeps all its blocks whenever it has nothing to compute, as the server's thread does."""

    def __init__(self, *args: Any, files: KvFiles, execution: MakeExecution = InTurn, **options: Any) -> None:
        self.kept = KeptBlocks(files)
        super().__init__(*args, execution=self.kept.execution(execution), **options)

    def step(self) -> EngineStep:
        step = super().step()
        if not self.has_unfinished_requests:
            for _ in self.kept.when_idle():
                pass
        return step


def keeping(make_execution: Callable[[BlockManager], MakeExecution], files: KvFiles) -> Callable[..., Engine]:
    """Makes engines that compute their steps in some way, and keep their blocks."""

    def make(  # type: ignore[no-untyped-def]
        model, tokenizer, config, max_seq_len, blocks, policy, clock, kv_bits
    ) -> Engine:
        execution = make_execution(blocks)
        args = model, tokenizer, config, max_seq_len, blocks, policy, clock, kv_bits
        return KeepingEngine(*args, files=files, execution=execution)

    return make
