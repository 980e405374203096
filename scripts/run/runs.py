"""Runs of a batch of prompts: read them, make what serves them, serve."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from scripts.checkpoints.files import resolve_checkpoint
from scripts.packages import import_package, sentences_of
from scripts.run.engine_recorder import EngineRecorder
from scripts.run.recorder import Recorder
from scripts.run.run_options import RunOptions
from scripts.run.run_report import AnyRecorder

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from tiny_llm import Engine as ServingEngine
    from tiny_llm import Qwen3Model, SamplingParams
    from tiny_llm.scheduling.blocks import Blocks

QUESTIONS = Path(__file__).with_name("demo_prompts.json")
OWN_PROMPTS = "demo_prompts.json"  # beside a checkpoint that is no assistant


def prompts_of(options: RunOptions) -> list[str]:
    """The prompts of a run, round by round; ValueError if they or another option cannot be used."""
    prompts = read_prompts(options.prompts, resolve_checkpoint(options.model))
    request_params(options, 0)
    return prompts * options.rounds


@contextmanager
def package_of(options: RunOptions) -> Iterator[ModuleType]:
    """The package that serves; what a learner's raises becomes a ValueError of one sentence."""
    package = import_package(options.mine)
    if not options.mine:
        yield package
        return
    try:
        with sentences_of(package):
            yield package
    except ValueError as error:
        if options.engine == "serving" and options.blocks and re.search(r"week 3 day [2-9]", str(error)):
            raise ValueError(f"{error}; --blocks 0 serves without blocks, as on day 3.1") from None
        raise


def read_prompts(file: Path | None, checkpoint: Path) -> list[str]:
    """The prompts of a file, those beside the checkpoint, or the general questions.

    Raises:
        ValueError: the file cannot be read or holds no prompt.
    """
    if file is None:
        own = checkpoint / OWN_PROMPTS
        file = own if own.exists() else QUESTIONS
    try:
        content = file.read_text(encoding="utf-8")
        prompts = json.loads(content) if file.suffix == ".json" else content.splitlines()
    except OSError as error:
        raise ValueError(f"cannot read the prompts in {file}: {error.strerror}") from None
    except ValueError:
        raise ValueError(f"{file} is not valid UTF-8 text or JSON: give a prompt a line, or a list") from None
    if not isinstance(prompts, list) or not all(isinstance(prompt, str) for prompt in prompts):
        raise ValueError(f"{file} must hold a JSON list of strings")
    prompts = [prompt for prompt in prompts if prompt.strip()]
    if not prompts:
        raise ValueError(f"{file} holds no prompt: write one a line")
    return prompts


def make_recorder(
    options: RunOptions, model: "Qwen3Model", tokenizer: "TokenizerWrapper", prompts: list[str]
) -> AnyRecorder:
    """A generator or engine with every prompt submitted; ValueError if one is too long."""
    from scripts.checkpoints.models import as_chat
    from tiny_llm import BatchGenerator

    max_seq_len = model.config.max_position_embeddings
    recorder: AnyRecorder
    if options.engine == "serving":
        recorder = EngineRecorder(make_engine(options, model, tokenizer))
    else:
        generator = BatchGenerator(
            model,
            tokenizer,
            batch_size=options.batch_size,
            prefill_step=max_seq_len if options.no_chunking else options.prefill_step,
            max_seq_len=max_seq_len,
        )
        recorder = Recorder(generator)
    for index, prompt in enumerate(prompts):
        recorder.submit(
            as_chat(tokenizer, prompt) if tokenizer.has_chat_template else prompt,
            request_params(options, index),
        )
    return recorder


def make_engine(options: RunOptions, model: "Qwen3Model", tokenizer: "TokenizerWrapper") -> "ServingEngine":
    """An engine; without chunking a step holds every prompt whole."""
    from tiny_llm import Engine, SchedulerConfig

    max_seq_len = model.config.max_position_embeddings
    budget = options.batch_size * max_seq_len if options.no_chunking else options.budget
    config = SchedulerConfig(budget, options.batch_size)
    return Engine(model, tokenizer, config, max_seq_len, blocks=make_blocks(options))


def make_blocks(options: RunOptions) -> "Blocks":
    """The blocks of an engine; unlimited ones where each request has a cache of its own."""
    from tiny_llm import BlockManager, PrefixCachingBlockManager, UnlimitedBlocks

    if not options.blocks:
        return UnlimitedBlocks()
    kind = BlockManager if options.no_prefix_caching else PrefixCachingBlockManager
    return kind(options.blocks, options.block_size, overcommit=options.overcommit)


def request_params(options: RunOptions, index: int) -> "SamplingParams":
    """How one request is sampled, each with a seed of its own; ValueError for an option out of range."""
    from tiny_llm import SamplingParams

    return SamplingParams(
        temperature=options.temperature, seed=options.seed + index, max_tokens=options.max_tokens
    )


def serve(recorder: AnyRecorder) -> None:
    """Step until nothing is left."""
    while recorder.has_work:
        recorder.step()
