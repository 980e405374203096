"""Serve a batch of requests of very different lengths and watch them being prefilled and decoded."""

import json
import time
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.live import Live

import tiny_llm_ref
from scripts.checkpoints import SHIPPED_MODEL, resolve_checkpoint
from scripts.engine_recorder import EngineRecorder
from scripts.errors import usage_errors
from scripts.packages import learners_package, sentences_of
from scripts.recorder import Recorder
from scripts.run_report import AnyRecorder, as_json, final_report, live_picture, served, states_of

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from tiny_llm_ref import Engine as ServingEngine
    from tiny_llm_ref import Qwen3Model, SamplingParams

QUESTIONS = Path(__file__).with_name("demo_prompts.json")
OWN_PROMPTS = "demo_prompts.json"  # beside a checkpoint that is no assistant
SECONDS_BETWEEN_PICTURES = 0.08

Model = Annotated[str, typer.Option(help="A checkpoint folder, or a name for `pdm run get-model`.")]
PrefillStep = Annotated[int, typer.Option(min=1, help="Most prompt tokens computed in a step.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Most requests that decode together.")]
Engine = Annotated[
    Literal["batch", "serving"], typer.Option(help="The batch of week 2, or the engine of week 3.")
]
Budget = Annotated[
    int, typer.Option(min=1, help="Of the engine: most tokens of a step, prompts and answers.")
]
MaxTokens = Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")]
Prompts = Annotated[Path | None, typer.Option(help="A prompt a line, or a JSON list of strings.")]
NoChunking = Annotated[bool, typer.Option("--no-chunking", help="Prefill whole prompts, to see the stall.")]
Temperature = Annotated[float, typer.Option(help="0 takes the likeliest token.")]
Seed = Annotated[int, typer.Option(help="Of request 0; the others count on from it.")]
Mine = Annotated[bool, typer.Option("--mine", help="Serve with tiny_llm, your own, not with the reference.")]
JsonOutput = Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")]


def main(
    model: Model = SHIPPED_MODEL,
    engine: Engine = "batch",
    prefill_step: PrefillStep = 64,
    budget: Budget = 64,
    batch_size: BatchSize = 4,
    max_tokens: MaxTokens = 48,
    prompts: Prompts = None,
    no_chunking: NoChunking = False,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    mine: Mine = False,
    json_output: JsonOutput = False,
) -> None:
    """Serve a batch of requests and watch it: who waits, who is prefilled, who decodes, and what it costs.

    The reference serves, tiny_llm_ref, unless you give --mine: then your own package does.

    Example: pdm run demo --no-chunking, then again without the option; compare the longest gaps. Or
    pdm run demo --engine serving --budget 32: the engine of week 3, whose steps have one token budget.
    """
    with usage_errors():
        settings = settings_of(
            model, engine, None if no_chunking else prefill_step, None if no_chunking else budget, batch_size
        )
        settings |= {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
        all_prompts = read_prompts(prompts, resolve_checkpoint(model))
        request_params(settings, 0)  # out-of-range options are refused before anything is loaded
        if not mine:
            run(settings, all_prompts, json_output, tiny_llm_ref)
            return
        package = learners_package()
        with sentences_of(package):
            run(settings, all_prompts, json_output, package)


def settings_of(
    model: str, engine: str, prefill_step: int | None, budget: int | None, batch_size: int
) -> dict[str, Any]:
    """The settings of a run that say how steps are made; None computes prompts whole.

    Raises:
        ValueError: the budget is smaller than the batch.
    """
    settings: dict[str, Any] = {"model": model, "engine": engine}
    if engine == "batch":
        return settings | {"prefill_step": prefill_step, "batch_size": batch_size}
    if budget is not None and budget < batch_size:
        raise ValueError(
            f"the budget is {budget} and the batch size {batch_size}: a step needs a token for each that runs"
        )
    return settings | {"budget": budget, "batch_size": batch_size}


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


def run(settings: dict[str, Any], prompts: list[str], json_output: bool, package: ModuleType) -> None:
    """Load, serve, report."""
    console = Console(highlight=False)
    notes = Console(stderr=True, highlight=False)
    start = time.perf_counter()
    with notes.status(f"loading {settings['model']}"):
        from scripts.models import load_by_name  # seconds of imports, so not before there is a status to show

        model, tokenizer = load_by_name(settings["model"], package)
    if not json_output:
        load_seconds = time.perf_counter() - start
        by = "your tiny_llm" if package.__name__ == "tiny_llm" else f"the reference, {package.__name__}"
        console.print(f"{settings['model']} loaded in {load_seconds:.1f} s by {by}")
    recorder = make_recorder(settings, model, tokenizer, prompts, package)
    with recorder.generator:
        if json_output:
            serve(recorder)
            print(json.dumps(as_json(recorder, settings)))
        elif console.is_terminal:
            serve_live(recorder, console)
        else:
            serve_lines(recorder, console)


def make_recorder(
    settings: dict[str, Any],
    model: "Qwen3Model",
    tokenizer: "TokenizerWrapper",
    prompts: list[str],
    package: ModuleType = tiny_llm_ref,
) -> AnyRecorder:
    """A package's generator or engine with every prompt submitted; ValueError if one is too long."""
    from scripts.models import as_chat

    max_seq_len = model.config.max_position_embeddings
    recorder: AnyRecorder
    if settings.get("engine") == "serving":
        recorder = EngineRecorder(make_engine(settings, model, tokenizer, package))
    else:
        generator = package.BatchGenerator(
            model,
            tokenizer,
            batch_size=settings["batch_size"],
            prefill_step=settings["prefill_step"] or max_seq_len,
            max_seq_len=max_seq_len,
        )
        recorder = Recorder(generator)
    for index, prompt in enumerate(prompts):
        recorder.submit(
            as_chat(tokenizer, prompt) if tokenizer.has_chat_template else prompt,
            request_params(settings, index, package),
        )
    return recorder


def make_engine(
    settings: dict[str, Any], model: "Qwen3Model", tokenizer: "TokenizerWrapper", package: ModuleType
) -> "ServingEngine":
    """A package's engine; without a budget a step holds every prompt whole."""
    max_seq_len = model.config.max_position_embeddings
    batch_size = settings["batch_size"]
    config = package.SchedulerConfig(settings["budget"] or batch_size * max_seq_len, batch_size)
    engine: ServingEngine = package.Engine(model, tokenizer, config, max_seq_len)
    return engine


def request_params(
    settings: dict[str, Any], index: int, package: ModuleType = tiny_llm_ref
) -> "SamplingParams":
    """How one request is sampled, each with a seed of its own; ValueError for an option out of range."""
    seed = settings["seed"] + index
    params: SamplingParams = package.SamplingParams(
        temp=settings["temperature"], seed=seed, max_tokens=settings["max_tokens"]
    )
    return params


def serve(recorder: AnyRecorder) -> None:
    """Step until nothing is left."""
    while recorder.has_work:
        recorder.step()


def serve_live(recorder: AnyRecorder, console: Console) -> None:
    """In a terminal: a picture that changes as the requests do, then the report."""
    with Live(console=console, auto_refresh=False) as live:
        last_drawn = 0.0
        while recorder.has_work:
            recorder.step()
            if recorder.seconds - last_drawn > SECONDS_BETWEEN_PICTURES:
                live.update(live_picture(recorder, console.width), refresh=True)
                last_drawn = recorder.seconds
        live.update(live_picture(recorder, console.width), refresh=True)
    console.print()
    console.print(final_report(recorder, console))


def serve_lines(recorder: AnyRecorder, console: Console) -> None:
    """Elsewhere: a line whenever a request changes its state, its text at the end, then the report."""
    shown: dict[int, str] = {}
    while recorder.has_work:
        recorder.step()
        for request, state in zip(served(recorder), states_of(recorder), strict=True):
            if shown.get(request.prompt_idx, "waiting") != state:
                shown[request.prompt_idx] = state
                text = f": {' '.join(request.text().split())}" if request.is_done else ""
                console.print(
                    f"{recorder.seconds:7.2f} s  request {request.prompt_idx} {state}{text}",
                    soft_wrap=True,
                    markup=False,
                )
    console.print()
    console.print(final_report(recorder, console))


if __name__ == "__main__":
    typer.run(main)
