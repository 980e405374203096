"""One measurement of `pdm run bench ranks`, in the processes of its ranks: steps and their exchanges.

python -m benches.rank_process CHECKPOINT_FOLDER FILE_FOR_RESULTS MAX_TOKENS
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import mlx.core as mx

from accelerated.pretrained import load_part
from benches.experts import PROMPT, step_seconds
from benches.load import take, token_stream
from kernel_runtime.checkpoint import load_tokenizer
from scripts.checkpoints.models import load_by_name
from scripts.hardware.precision import use_full_float32
from tiny_llm import ModelConfig, Qwen3Model, SchedulerConfig
from tiny_llm.model.ranks import FRAME, Ranks, join_ranks
from tiny_llm.ranks.run_rank import Leader, follow

BATCHES = (1, 8, 32)
MAX_SEQ_LEN = 128
EXCHANGES_PER_TOKEN = 4


@dataclass(frozen=True)
class Measured:
    """Median seconds of a decode step, and those of its exchanges alone, by the size of the batch."""

    step: dict[str, float]
    exchanges: dict[str, float]


def main() -> None:
    """Measure, and let rank 0 write what was found."""
    use_full_float32()
    folder, file, max_tokens = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    num_exchanges = EXCHANGES_PER_TOKEN * max_tokens
    ranks = join_ranks()
    config = ModelConfig.from_dict(json.loads((folder / "config.json").read_text()))
    exchange_seconds(config, max(BATCHES), ranks, num_exchanges)  # warms up
    exchanges = {str(batch): exchange_seconds(config, batch, ranks, num_exchanges) for batch in BATCHES}
    if ranks.rank:
        sys.exit(follow(folder, ranks, mx.float32, load_part))
    if ranks.size == 1:
        steps = step_times(folder, load_by_name(str(folder))[0], max_tokens)
    else:
        leader = Leader(ranks, load_part)
        with leader.stopping_others():
            model = leader.load(folder, mx.float32, SchedulerConfig(), MAX_SEQ_LEN)
            steps = step_times(folder, model, max_tokens)
    file.write_text(json.dumps(asdict(Measured(steps, exchanges))))


def step_times(folder: Path, model: Qwen3Model, max_tokens: int) -> dict[str, float]:
    """Seconds of a decode step, by the size of the batch."""
    stream = token_stream(str(folder), load_tokenizer(folder))
    prompts = [take(stream, 53 * number, PROMPT) for number in range(max(BATCHES))]
    return {str(batch): step_seconds(model, prompts[:batch], max_tokens) for batch in BATCHES}


def exchange_seconds(config: ModelConfig, batch: int, ranks: Ranks, count: int) -> float:
    """Seconds of all exchanges of a decode step with so many requests, each timed `count` times."""
    if ranks.size == 1:
        return 0.0
    heads, E = config.num_attention_heads * config.head_dim, config.hidden_size
    widths = heads, E, config.intermediate_size, E
    joined = [mx.zeros((batch, width // ranks.size)) for width in widths]
    ends = mx.zeros((batch, E)), mx.zeros((batch, config.vocab_size // ranks.size))
    per_layer = sum(seconds_of(ranks.all_gather, x, count) for x in joined)
    message = seconds_of(ranks.all_sum, mx.zeros(FRAME, mx.int32), count)
    return (
        config.num_hidden_layers * per_layer
        + message
        + seconds_of(ranks.all_sum, ends[0], count)
        + seconds_of(ranks.all_gather, ends[1], count)
    )


def seconds_of(exchange: Callable[[mx.array], mx.array], x: mx.array, count: int) -> float:
    """Seconds of one exchange that nothing disturbs: only one in twenty is faster."""
    mx.eval(x)
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        mx.eval(exchange(x))
        seconds.append(time.perf_counter() - start)
    return sorted(seconds)[count // 20]


if __name__ == "__main__":
    main()
