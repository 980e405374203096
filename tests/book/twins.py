"""The JavaScript twins of the figures, in V8."""

from py_mini_racer import MiniRacer

from scripts.course import ROOT

TWINS = ROOT / "book" / "viz" / "twins"
NUM_CASES = 1000


def twin(name: str) -> MiniRacer:
    """V8 with one twin loaded."""
    context = MiniRacer()
    context.eval((TWINS / f"{name}.js").read_text(encoding="utf-8"))
    return context
