"""One long prompt that arrives while others decode: what each chunk size costs it, and them."""

from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from rich.table import Table

from benches.rounds import Rounds
from benches.trade_off import Point, trade_off_chart
from scripts.hardware.memory import memory_use
from scripts.run.recorder import Recorder
from tiny_llm import BatchGenerator, Qwen3Model
from tiny_llm.speculation.endless_tokenizer import EndlessTokenizer

CHUNK_SIZES = (8, 16, 32, 64, 128, 256, 512)
SHORT_PROMPT = 8  # tokens


@dataclass(frozen=True)
class Arrival:
    """What was felt in one run, until the long prompt had its first token.

    `ttft_s` is the long prompt's; `longest_gap_s` is the longest between two tokens of one of the others,
    `tokens_meanwhile` how many they got; `peak_bytes` is memory beyond what was held when the prompt came.
    """

    ttft_s: float
    longest_gap_s: float
    tokens_meanwhile: int
    peak_bytes: int


def sweep(
    model: Qwen3Model, prompt_ids: list[int], num_decodes: int, rounds: Rounds
) -> dict[str, list[Arrival]]:
    """Runs by chunk size, "whole" the last; the sizes in turns, the first round left out as warm-up."""
    sizes = [size for size in CHUNK_SIZES if size < len(prompt_ids)] + [len(prompt_ids)]
    names = [*map(str, sizes[:-1]), "whole"]
    size_of = dict(zip(names, sizes, strict=True))
    return rounds.in_turns(
        names,
        lambda name, _: serve_arrival(model, prompt_ids, num_decodes, size_of[name]),
        lambda arrival: {"TTFT": arrival.ttft_s},
    )


def serve_arrival(model: Qwen3Model, prompt_ids: list[int], num_decodes: int, chunk_size: int) -> Arrival:
    """Let some requests decode, submit the prompt, and step until it is computed.

    The decoding requests fill every slot, so the prompt is not promoted: only its prefill is measured.

    Raises:
        ValueError: prompt and decodes do not fit in the model's positions.
    """
    max_seq_len = model.config.max_position_embeddings
    if len(prompt_ids) >= max_seq_len:
        raise ValueError(
            f"a prompt of {len(prompt_ids)} tokens leaves no room within {max_seq_len} positions"
        )
    generator = BatchGenerator(model, EndlessTokenizer(), num_decodes, chunk_size, max_seq_len)
    recorder = Recorder(generator)
    with generator:
        decoding = [recorder.submit(prompt_ids[i : i + SHORT_PROMPT]) for i in range(num_decodes)]
        while not all(request in generator.slots for request in decoding):
            recorder.step()
        before = {request.prompt_idx: len(request.token_ids) for request in decoding}
        with memory_use() as memory:
            long = recorder.submit(prompt_ids)
            while not long.is_prefill_done:
                recorder.step()
        # The gap that is open when the prompt arrives counts: it starts one token earlier.
        gaps = [recorder.metrics.gaps(number)[count - 1 :] for number, count in before.items()]
    ttft = recorder.metrics.ttft(long.prompt_idx)
    assert ttft is not None
    return Arrival(ttft, max(map(max, gaps)), sum(map(len, gaps)), memory.peak)


def as_json(runs: dict[str, list[Arrival]]) -> dict[str, list[dict[str, Any]]]:
    """Every run as numbers."""
    return {name: [asdict(arrival) for arrival in arrivals] for name, arrivals in runs.items()}


def sweep_table(runs: dict[str, list[Arrival]]) -> Table:
    """Medians by chunk size, with the spread of both times."""
    table = Table(box=None, header_style="bold", padding=(0, 1))
    for heading in ("chunk", "TTFT", "longest gap", "tokens", "memory"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, arrivals in runs.items():
        table.add_row(
            name,
            spread([arrival.ttft_s for arrival in arrivals]),
            spread([arrival.longest_gap_s for arrival in arrivals]),
            f"{median(arrival.tokens_meanwhile for arrival in arrivals):.0f}",
            f"{median(arrival.peak_bytes for arrival in arrivals) / 1e6:.1f} MB",
        )
    return table


def spread(seconds: list[float]) -> str:
    """Median, smallest and largest in milliseconds."""
    low, high = min(seconds) * 1e3, max(seconds) * 1e3
    return f"{median(seconds) * 1e3:.0f} ms ({low:.0f} to {high:.0f})"


def sweep_chart(title: str, runs: dict[str, list[Arrival]], standalone: bool = True) -> str:
    """TTFT against the longest gap, a point a chunk size; `standalone` as for `trade_off_chart`."""
    points = [
        Point(
            name,
            median(arrival.longest_gap_s for arrival in arrivals) * 1e3,
            median(arrival.ttft_s for arrival in arrivals) * 1e3,
        )
        for name, arrivals in runs.items()
    ]
    x_name, y_name = "longest gap of the decoding requests (ms)", "time to first token of the prompt (ms)"
    return trade_off_chart(title, x_name, y_name, points, standalone)
