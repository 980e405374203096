"""Write the starter package, tiny_llm/, from the reference, or check that it is what would be written."""

import sys
from typing import Annotated

import typer

from scripts.course import ROOT
from scripts.sources.files import source_files, write
from scripts.sources.render import render

STARTER = ROOT / "tiny_llm"

Check = Annotated[bool, typer.Option("--check", help="Change nothing; exit 1 if a file differs.")]


def main(check: Check = False) -> None:
    """Make tiny_llm/ as a learner gets it: for those who change the reference, not for learners.

    Example: pdm run author starter --check
    """
    sources = render(())
    if not check:
        write(sources, STARTER)
    present = {path.relative_to(STARTER): path.read_bytes() for path in source_files(STARTER)}
    different = sorted(path for path, source in sources.items() if source.encode() != present.get(path))
    for path in different:
        print(f"tiny_llm/{path} is not what the reference makes: run `pdm run author starter`")
    stale = sorted(present.keys() - sources.keys())
    for path in stale:
        print(f"tiny_llm/{path} is in the way: the reference has no such file, so remove it")
    sys.exit(1 if different or stale else 0)


if __name__ == "__main__":
    typer.run(main)
