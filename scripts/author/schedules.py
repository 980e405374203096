"""Try the law of output invariance on many random schedules: `tests/engine/test_invariance.py` at length."""

from collections.abc import Callable
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
    bool, typer.Option("--drafts", help="With drafts (day 3.6): of lookup, or of a model that errs at times.")
]
Grammars = Annotated[bool, typer.Option("--grammars", help="Some requests have grammars (day 3.8).")]
QuantizedKv = Annotated[
    bool, typer.Option("--quantized-kv", help="Keys and values are in quantized blocks (day 4.1).")
]
Ref = Annotated[bool, typer.Option("--ref", help="Try tiny_llm_ref, the finished solution.")]


def main(
    count: Count = 50_000,
    first_seed: Seed = None,
    engine: Engine = "batch",
    drafts: Drafts = False,
    grammars: Grammars = False,
    quantized_kv: QuantizedKv = False,
    ref: Ref = False,
) -> None:
    """Draw schedules at random and demand that each request gets the tokens it gets alone.

    Example: pdm run author schedules --engine serving --ref --count 2000
    """
    use_full_float32()
    with usage_errors():
        if drafts and engine == "batch":
            raise ValueError("the batch of week 2 computes no drafts: say --engine serving too")
        if grammars and engine == "batch":
            raise ValueError("the batch of week 2 knows no grammars: say --engine serving too")
        if quantized_kv and engine == "batch":
            raise ValueError("the batch of week 2 has no blocks: say --engine serving too")
        choose_package(ref)
        start = SystemRandom().randrange(2**32) if first_seed is None else first_seed
        try_schedules(count, start, engine, drafts, grammars, quantized_kv)
        print(f"{count} schedules, seed {start}: every request got the tokens it gets alone")


def try_schedules(
    count: int,
    first_seed: int,
    engine: Literal["batch", "serving"],
    drafts: bool = False,
    grammars: bool = False,
    quantized_kv: bool = False,
) -> None:
    """Raise the AssertionError of the simplest schedule that breaks the law, if one does."""
    drawn, check = drafted(grammars, quantized_kv) if drafts else laws(grammars, quantized_kv)[engine]

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


def laws(grammars: bool = False, quantized_kv: bool = False) -> dict[str, tuple[Any, Callable[..., None]]]:
    """What each engine's law is tried on, and what checks it."""
    from hypothesis import strategies as st

    from tests.support.schedules import check_engine_law, check_law, engine_schedules, schedules

    pools, kv_bits = stores(quantized_kv)
    of_engine = engine_schedules(pools, is_constrained=st.just(grammars), kv_bits=kv_bits)
    return {"batch": (schedules(), check_law), "serving": (of_engine, check_engine_law)}


def drafted(grammars: bool = False, quantized_kv: bool = False) -> tuple[Any, Callable[..., None]]:
    """The same for the engine with drafts, which needs a pool."""
    from hypothesis import strategies as st

    from tests.support.schedules import check_engine_law, engine_schedules
    from tests.support.speculation import DRAFTERS, speculative

    pools, kv_bits = stores(quantized_kv, needs_pool=True)
    sources = st.sampled_from(sorted(DRAFTERS))

    def check(drawn: tuple[Any, str]) -> None:
        schedule, source = drawn
        check_engine_law(schedule, speculative(DRAFTERS[source]))

    drawn = engine_schedules(pools, is_constrained=st.just(grammars), kv_bits=kv_bits)
    return st.tuples(drawn, sources), check


def stores(quantized_kv: bool, needs_pool: bool = False) -> tuple[Any, Any]:
    """Where keys and values may be, and in how many bits."""
    from hypothesis import strategies as st

    from tests.support.schedules import FLOATS, POOLS, QUANTIZED

    left_out = "dense" if quantized_kv or needs_pool else None
    pools = st.one_of(*(pool for name, pool in POOLS.items() if name != left_out))
    return pools, QUANTIZED if quantized_kv else FLOATS


if __name__ == "__main__":
    typer.run(main)
