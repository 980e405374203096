"""Try the law of output invariance on many random schedules: `tests/engine/test_invariance.py` at length."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import SystemRandom
from typing import Annotated, Any, Literal

import typer
from hypothesis import HealthCheck, given, seed, settings
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from scripts.errors import usage_errors
from scripts.hardware.precision import use_full_float32
from scripts.packages import choose_package

BATCH = 500  # schedules of one seed: hypothesis varies what it has drawn, so fresh seeds reach further

Count = Annotated[int, typer.Option(min=1, help="How many schedules to try.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Try the same ones again.")]
Engine = Annotated[
    Literal["batch", "serving"], typer.Option(help="The batch of week 2, or the engine of week 3.")
]
Drafts = Annotated[
    bool,
    typer.Option(
        "--drafts",
        help="With drafts (day 3.6): of lookup, of a model that errs, of one that rests, or of one whose "
        "context is too short.",
    ),
]
Grammars = Annotated[bool, typer.Option("--grammars", help="Some requests have grammars (day 3.8).")]
QuantizedKv = Annotated[
    bool, typer.Option("--quantized-kv", help="Keys and values are in quantized blocks (day 4.1).")
]
Experts = Annotated[bool, typer.Option("--experts", help="The model has mixtures of experts (day 4.2).")]
NumRanks = Annotated[
    int, typer.Option("--ranks", min=1, max=2, help="Ranks that share the model, as threads (day 4.3).")
]
Ref = Annotated[bool, typer.Option("--ref", help="Try tiny_llm_ref, the finished solution.")]


@dataclass(frozen=True)
class Features:
    """What the engine of week 3 does besides."""

    drafts: bool = False
    grammars: bool = False
    quantized_kv: bool = False
    experts: bool = False
    num_ranks: int = 1

    @property
    def needs_pool(self) -> bool:
        """Whether keys and values must be in blocks."""
        return self.drafts or self.quantized_kv or self.num_ranks > 1


def main(
    count: Count = 50_000,
    first_seed: Seed = None,
    engine: Engine = "batch",
    drafts: Drafts = False,
    grammars: Grammars = False,
    quantized_kv: QuantizedKv = False,
    experts: Experts = False,
    num_ranks: NumRanks = 1,
    ref: Ref = False,
) -> None:
    """Draw schedules at random and demand that each request gets the tokens it gets alone.

    Example: pdm run author schedules --engine serving --ref --count 2000
    """
    use_full_float32()
    with usage_errors():
        features = Features(drafts, grammars, quantized_kv, experts, num_ranks)
        if engine == "batch" and features != Features():
            raise ValueError(
                "the batch of week 2 has no drafts, grammars, blocks, experts or ranks: "
                "say --engine serving too"
            )
        choose_package(ref)
        start = SystemRandom().randrange(2**32) if first_seed is None else first_seed
        try_schedules(count, start, engine, features)
        print(f"{count} schedules, seed {start}: every request got the tokens it gets alone")


def try_schedules(
    count: int, first_seed: int, engine: Literal["batch", "serving"], features: Features
) -> None:
    """Raise the AssertionError of the simplest schedule that breaks the law, if one does."""
    drawn, check = law_of_batch() if engine == "batch" else law_of_engine(features)

    columns = (TextColumn("schedules"), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as progress:
        bar = progress.add_task("schedules", total=count)
        for batch_start in range(0, count, BATCH):

            @seed(first_seed + batch_start)
            @settings(
                max_examples=min(BATCH, count - batch_start),
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            )
            @given(drawn)
            def law(schedule: Any) -> None:
                check(schedule)
                progress.advance(bar)

            law()


def law_of_batch() -> tuple[Any, Callable[..., None]]:
    """What the law of week 2's batch is tried on, and what checks it."""
    from tests.support.schedules import check_law, schedules

    return schedules(), check_law


def law_of_engine(features: Features) -> tuple[Any, Callable[..., None]]:
    """What the law of the engine is tried on, and what checks it."""
    from hypothesis import strategies as st

    from tests.support.led_schedules import check_law_on_ranks
    from tests.support.schedules import FLOATS, POOLS, QUANTIZED, check_engine_law, engine_schedules
    from tests.support.speculation import DRAFTERS, speculative
    from tiny_llm import Engine

    pools = st.one_of(*(pool for name, pool in POOLS.items() if name != "dense" or not features.needs_pool))
    kv_bits = QUANTIZED if features.quantized_kv else FLOATS
    drawn = engine_schedules(pools, is_constrained=st.just(features.grammars), kv_bits=kv_bits)
    kinds = {name: speculative(make) for name, make in DRAFTERS.items()} if features.drafts else {"": Engine}
    check_law = check_engine_law if features.num_ranks == 1 else check_law_on_ranks

    def check(chosen: tuple[Any, str]) -> None:
        schedule, kind = chosen
        check_law(replace(schedule, is_sparse=features.experts), kinds[kind])

    return st.tuples(drawn, st.sampled_from(sorted(kinds))), check


if __name__ == "__main__":
    typer.run(main)
