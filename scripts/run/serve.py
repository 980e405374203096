"""Serve a model to clients that speak OpenAI's protocol."""

import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.checkpoints.files import SHIPPED_MODELS, SMOLLM2, resolve_checkpoint
from scripts.command import run_command
from scripts.errors import usage_errors
from scripts.options import with_options
from scripts.packages import import_package, sentences_of
from scripts.run.child_process import end_with_launcher
from scripts.run.serve_options import ServeOptions

if TYPE_CHECKING:
    from http_server.config import ServerConfig
    from http_server.engine_factory import EngineFactory
    from http_server.kv_events import KvEventPublisher
    from http_server.speculation import DrafterFactory
    from tiny_llm import SchedulerConfig
    from tiny_llm.engine.kept_blocks import KeptBlocks
    from tiny_llm.model.ranks import Ranks
    from tiny_llm.ranks.run_rank import Leader
    from tiny_llm.scheduling.observed_cache import CacheObserver


SERVER_DAY = (3, 7)
ABOUT_SHIPPED = "it has read nothing but the King James Bible, and continues any text in that style"
FOR_A_CHAT = f"for a model that chats, stop it and run: pdm run serve --model {SMOLLM2}"


@with_options(ServeOptions)
def main(make_options: Callable[[], ServeOptions]) -> None:
    """Serve a model to clients that speak OpenAI's protocol. The options have vLLM's names.

    The first Ctrl-C lets requests that have begun end, and the second one exits at once.

    Example: pdm run serve --port 8000, then in another terminal
    curl 127.0.0.1:8000/v1/completions -d '{"model": "qwen3-kjv-4m", "prompt": "In the beginning"}'
    """
    leave_torch_out()
    end_with_launcher()
    with usage_errors():
        options = make_options()
        checkpoint = resolve_checkpoint(options.model)
        package = import_package(options.mine)
        from kernel_runtime.checkpoint import read_json
        from scripts.run.ranks import is_rank, run_ranks
        from scripts.run.replicas import replica_number, run_replicas
        from tiny_llm.model.ranks import join_ranks

        with sentences_of(package) if options.mine else nullcontext():
            if options.mine:
                require_server(Path(str(package.__file__)).parent)
            command = [sys.executable, "-m", "scripts.run.serve", *sys.argv[1:]]
            if options.replicas > 1 and replica_number() is None:
                make_config(options, make_scheduler_config(options), None)  # or refuse
                sys.exit(run_replicas(options, command))
            if options.ranks > 1 and not is_rank():
                package.shard_config(read_json(checkpoint / "config.json"), options.ranks)  # or refuse
                sys.exit(run_ranks(command, options.ranks))
            if is_rank():  # waits for others in native code, where no handler in Python would run
                for number in (signal.SIGTERM, signal.SIGHUP):
                    signal.signal(number, signal.SIG_DFL)
            ranks = join_ranks()
            if ranks.rank:
                sys.exit(follow(checkpoint, ranks))
            serve(options, checkpoint, ranks)


def require_server(package: Path) -> None:
    """Refuse a learner's package without the server's core: its threads would end without a word.

    Raises:
        NotImplementedError: names the first task that is missing.
    """
    from scripts.course import load_course
    from scripts.learn.learner import read_package, tasks_with_holes

    missing = tasks_with_holes(read_package(package))
    for task in load_course().day(*SERVER_DAY).tasks:
        if task.is_core("none") and task.id in missing:
            number = f"week {SERVER_DAY[0]} day {SERVER_DAY[1]} task {task.number}"
            raise NotImplementedError(f"{number}, {task.title}, is not written yet")


def serve(options: ServeOptions, checkpoint: Path, ranks: "Ranks") -> None:
    """Serve until a signal comes, then let the other ranks end. Exit with an error if the engine fails."""
    from accelerated.pretrained import load_part
    from tiny_llm.ranks.run_rank import Leader

    leader = None if ranks.size == 1 else Leader(ranks, load_part)
    with nullcontext() if leader is None else leader.stopping_others():
        error = run_server(options, checkpoint, leader)
        if error is not None:
            print(f"error: the engine failed: {error}", file=sys.stderr)
            sys.exit(1 if leader is None else leader.exit_code(error))


def run_server(options: ServeOptions, checkpoint: Path, leader: "Leader | None") -> str | None:
    """Serve until a signal comes. Return why the engine failed, if it did."""
    from http_server.run_server import run_server as run
    from scripts.run.replicas import replica_number

    scheduler = make_scheduler_config(options)
    kept = make_kept(options, checkpoint)
    config = make_config(options, scheduler, kept)
    load_model = partial(load, checkpoint)
    if leader is not None:
        load_model = partial(load_leading, options, scheduler, checkpoint, leader)
    publisher = make_publisher(options)
    observer = None if publisher is None else publisher.events
    make_engine = make_factory(options, scheduler, load_model, observer, kept)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    has_notes = options.model in SHIPPED_MODELS and replica_number() in (None, 1)
    notes = (ABOUT_SHIPPED, FOR_A_CHAT) if has_notes else ()
    return run(make_engine, partial(load_tokenizer, checkpoint), config, notes, publisher)


def follow(checkpoint: Path, ranks: "Ranks") -> int:
    """Compute what rank 0 sends until it stops. Return the exit code."""
    from accelerated.pretrained import load_part
    from scripts.checkpoints.models import fastest_dtype
    from tiny_llm.ranks.run_rank import follow as follow_rank

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 says when to stop
    return follow_rank(checkpoint, ranks, fastest_dtype(), load_part)


def make_scheduler_config(options: ServeOptions) -> "SchedulerConfig":
    """The limits of a step. A step without decodes may have more tokens, since no stream waits for it."""
    from tiny_llm import SchedulerConfig

    return SchedulerConfig(
        options.max_num_batched_tokens,
        options.max_num_seqs,
        max_num_prefill_only_tokens=max(512, options.max_num_batched_tokens),
    )


def make_kept(options: ServeOptions, checkpoint: Path) -> "KeptBlocks | None":
    """What keeps blocks in files; None without a folder for them."""
    if options.kv_cache_dir is None:
        return None
    from scripts.checkpoints.models import fastest_dtype
    from tiny_llm.engine.kept_blocks import KeptBlocks
    from tiny_llm.paging.kv_files import KvFiles
    from tiny_llm.paging.kv_identity import kv_identity

    identity = kv_identity(checkpoint, fastest_dtype(), options.kv_bits, options.block_size)
    return KeptBlocks(KvFiles(options.kv_cache_dir, options.kv_cache_bytes, identity))


def make_config(
    options: ServeOptions, scheduler: "SchedulerConfig", kept: "KeptBlocks | None"
) -> "ServerConfig":
    """The settings of the server, apart from its model."""
    from http_server.config import ServerConfig

    return ServerConfig(
        options.names,
        scheduler,
        options.host,
        options.port,
        options.api_key,
        options.no_auth,
        options.max_num_queued_reqs,
        options.max_num_queued_tokens,
        timeout_graceful_shutdown=options.timeout_graceful_shutdown,
        num_speculative_tokens=options.num_drafts,
        has_priorities=options.scheduling_policy == "priority",
        allowed_origins=tuple(options.allowed_origins or ()),
        kept=kept,
    )


def make_publisher(options: ServeOptions) -> "KvEventPublisher | None":
    """What publishes KV events; None if there are to be none. The seed of their hashes is where vLLM's is."""
    if options.kv_events is None:
        return None
    from http_server.kv_events import KvEventPublisher

    return KvEventPublisher(options.kv_events, os.environ.get("PYTHONHASHSEED", "0"))


def make_factory(
    options: ServeOptions,
    scheduler: "SchedulerConfig",
    load_model: Callable[[], tuple[Any, Any]],
    observer: "CacheObserver | None",
    kept: "KeptBlocks | None",
) -> "EngineFactory":
    """What makes the engine, in the engine's thread."""
    from http_server.engine_factory import EngineFactory

    return EngineFactory(
        load_model,
        scheduler,
        options.max_model_len,
        options.num_gpu_blocks_override,
        options.block_size,
        not options.no_enable_prefix_caching,
        options.scheduling_policy,
        make_drafter_factory(options),
        None if options.kv_bits is None else int(options.kv_bits),
        options.overcommit,
        observer,
        kept,
    )


def make_drafter_factory(options: ServeOptions) -> "DrafterFactory | None":
    """What makes the drafter of an engine; None without speculation."""
    if options.speculation == "off":
        return None
    from http_server.speculation import DrafterFactory

    name = options.draft_model_name
    load_draft = None if name is None else partial(load, resolve_checkpoint(name))
    return DrafterFactory(options.num_drafts, load_draft)


def leave_torch_out() -> None:
    """Keep transformers, which has the tokenizer, from importing torch, which would take seconds."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]


def load(checkpoint: Path) -> tuple[Any, Any]:
    """Load the model and its tokenizer, in the engine's thread."""
    from scripts.checkpoints.models import load_by_name

    return load_by_name(str(checkpoint))


def load_leading(
    options: ServeOptions, scheduler: "SchedulerConfig", checkpoint: Path, leader: "Leader"
) -> tuple[Any, Any]:
    """Load rank 0's part of the model, and the tokenizer, in the engine's thread."""
    from scripts.checkpoints.models import fastest_dtype

    model = leader.load(checkpoint, fastest_dtype(), scheduler, options.max_model_len, options.step_timeout)
    return model, load_tokenizer(checkpoint)


def load_tokenizer(checkpoint: Path) -> Any:
    """Load another tokenizer, for the event loop."""
    from kernel_runtime.checkpoint import load_tokenizer as load

    return load(checkpoint)


if __name__ == "__main__":
    run_command(main, "serve")
