"""Serve a model to clients that speak OpenAI's protocol."""

import importlib
import logging
import os
import sys
from contextlib import nullcontext
from functools import partial
from types import ModuleType
from typing import Annotated, Literal

import typer

from scripts.checkpoints.files import SHIPPED_MODEL, resolve_checkpoint
from scripts.errors import usage_errors
from scripts.packages import learners_package, sentences_of

Model = Annotated[str, typer.Option(help="A checkpoint folder, or a name for `pdm run get-model`.")]
Names = Annotated[
    list[str] | None, typer.Option("--served-model-name", help="What clients call it; repeat for more names.")
]
Host = Annotated[str, typer.Option(help="The address to listen on.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 for any free one.")]
ApiKey = Annotated[str | None, typer.Option(envvar="TINY_LLM_API_KEY", help="What clients must send.")]
NoAuth = Annotated[bool, typer.Option("--no-auth", help="Let any machine in that can reach the address.")]
MaxModelLen = Annotated[int | None, typer.Option(min=1, help="Most tokens of a request, prompt and answer.")]
MaxNumSeqs = Annotated[int, typer.Option(min=1, help="Most requests that run at once.")]
MaxNumBatchedTokens = Annotated[int, typer.Option(min=1, help="Most tokens of a step.")]
MaxNumQueuedReqs = Annotated[int, typer.Option(min=0, help="Most requests that wait; others get 429.")]
MaxNumQueuedTokens = Annotated[
    int | None, typer.Option(min=1, help="Most prompt tokens that wait; others get 429.")
]
NumBlocks = Annotated[
    int | None, typer.Option("--num-gpu-blocks-override", min=1, help="Blocks of the pool.")
]
BlockSize = Annotated[int, typer.Option(min=1, help="Tokens of a block.")]
NoPrefixCaching = Annotated[
    bool, typer.Option("--no-enable-prefix-caching", help="Compute equal beginnings again.")
]
SchedulingPolicy = Annotated[Literal["fcfs", "priority"], typer.Option(help="Which requests go first.")]
Speculation = Annotated[
    Literal["off", "lookup", "draft-model"],
    typer.Option(help="Where drafts come from: the tokens so far, or a smaller model."),
]
NumSpeculativeTokens = Annotated[
    int | None,
    typer.Option(min=1, max=32, help="Most drafts of a request in a step. [default: 8, or 3 of a model]"),
]
DraftModel = Annotated[str, typer.Option(help="The smaller model, with the same tokenizer.")]
Mine = Annotated[bool, typer.Option("--mine", help="Serve with tiny_llm, your own.")]

DRAFT_MODEL = "qwen3-kjv-1m"
NUM_DRAFTS = {"off": 0, "lookup": 8, "draft-model": 3}


def main(
    model: Model = SHIPPED_MODEL,
    served_model_name: Names = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    api_key: ApiKey = None,
    no_auth: NoAuth = False,
    max_model_len: MaxModelLen = None,
    max_num_seqs: MaxNumSeqs = 8,
    max_num_batched_tokens: MaxNumBatchedTokens = 128,
    max_num_queued_reqs: MaxNumQueuedReqs = 256,
    max_num_queued_tokens: MaxNumQueuedTokens = None,
    num_gpu_blocks_override: NumBlocks = None,
    block_size: BlockSize = 16,
    no_enable_prefix_caching: NoPrefixCaching = False,
    scheduling_policy: SchedulingPolicy = "fcfs",
    speculation: Speculation = "off",
    num_speculative_tokens: NumSpeculativeTokens = None,
    draft_model: DraftModel = DRAFT_MODEL,
    mine: Mine = False,
) -> None:
    """Serve a model to clients that speak OpenAI's protocol. The options have vLLM's names.

    The first Ctrl-C lets requests that have begun end, and the second one exits at once.

    Example: pdm run serve --port 8000, then in another terminal
    curl localhost:8000/v1/completions -d '{"model": "qwen3-kjv-4m", "prompt": "In the beginning"}'
    """
    leave_torch_out()
    with usage_errors():
        checkpoint = resolve_checkpoint(model)
        names = tuple(served_model_name or [model])
        package = learners_package() if mine else importlib.import_module("tiny_llm_ref")
        with sentences_of(package) if mine else nullcontext():
            server = importlib.import_module(f"{package.__name__}.serving.server.given.run_server")
            factory = importlib.import_module(f"{package.__name__}.serving.server.given.engine_factory")
            settings = importlib.import_module(f"{package.__name__}.serving.server.given.config")
            scheduler = package.SchedulerConfig(
                max_num_batched_tokens,
                max_num_seqs,
                max_num_prefill_only_tokens=max(512, max_num_batched_tokens),
            )
            num_drafts = num_speculative_tokens or NUM_DRAFTS[speculation]
            make_drafter = None
            if speculation != "off":
                drafts = importlib.import_module(f"{package.__name__}.serving.server.given.speculation")
                folder = resolve_checkpoint(draft_model) if speculation == "draft-model" else None
                make_drafter = drafts.DrafterFactory(
                    num_drafts, folder and partial(load, str(folder), package)
                )
            config = settings.ServerConfig(
                names,
                scheduler,
                host,
                port,
                api_key,
                no_auth,
                max_num_queued_reqs,
                max_num_queued_tokens,
                num_speculative_tokens=num_drafts if make_drafter else 0,
                has_priorities=scheduling_policy == "priority",
            )
            make_engine = factory.EngineFactory(
                partial(load, str(checkpoint), package),
                scheduler,
                max_model_len,
                num_gpu_blocks_override,
                block_size,
                not no_enable_prefix_caching,
                scheduling_policy,
                make_drafter,
            )
            logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
            logging.getLogger("uvicorn").setLevel(logging.WARNING)
            error = server.run_server(make_engine, partial(load_tokenizer, checkpoint), config)
        if error is not None:
            print(f"error: the engine failed: {error}", file=sys.stderr)
            sys.exit(1)


def leave_torch_out() -> None:
    """Keep transformers, which has the tokenizer, from importing torch, which would take seconds."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]


def load(checkpoint: str, package: ModuleType):  # type: ignore[no-untyped-def]
    """Load the model and its tokenizer, in the engine's thread."""
    from scripts.checkpoints.models import load_by_name

    return load_by_name(checkpoint, package)


def load_tokenizer(checkpoint):  # type: ignore[no-untyped-def]
    """Load another tokenizer, for the event loop."""
    from kernel_runtime.checkpoint import load_tokenizer as load

    return load(checkpoint)


if __name__ == "__main__":
    typer.run(main)
