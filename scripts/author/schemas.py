"""Try structured outputs on many random JSON schemas: `tests/engine/test_schemas.py` at length."""

from random import SystemRandom
from typing import Annotated

import typer
from rich.progress import track

from scripts.errors import usage_errors
from scripts.hardware.precision import use_full_float32
from scripts.packages import choose_package

AT_ONCE = 20

Count = Annotated[int, typer.Option(min=1, help="How many schemas to try.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Try the same ones again.")]
Ref = Annotated[bool, typer.Option("--ref", help="Try tiny_llm_ref, the finished solution.")]


def main(count: Count = 1000, first_seed: Seed = None, ref: Ref = False) -> None:
    """Draw JSON schemas at random and demand that each finished answer is valid, with drafts and without.

    Example: pdm run author schemas --ref --count 200
    """
    use_full_float32()
    with usage_errors():
        choose_package(ref)
        from tests.support.schemas import check_schemas

        start = SystemRandom().randrange(2**32) if first_seed is None else first_seed
        num_finished = 0
        for done in track(range(0, count, AT_ONCE), "schemas"):
            num_finished += check_schemas(start + done, min(AT_ONCE, count - done))
        print(f"{count} schemas, seed {start}: all {num_finished} finished answers are valid")


if __name__ == "__main__":
    typer.run(main)
