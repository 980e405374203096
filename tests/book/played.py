"""The figures of the chapters as a reader works them: their scripts, in V8, with a stand-in for the page."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from py_mini_racer import MiniRacer

from scripts.book.figures import parse_figure
from scripts.course import ROOT
from tests.book.figure_pages import VIZ, plain_numbers, scripts

WORD = re.compile(r"^\{\{#figure (.*?)\}\}$", re.M | re.S)
HANDS = """
Node.prototype.addEventListener = function (type, listener) { (this.listeners ??= {})[type] = listener; };
Node.prototype.click = function () { this.listeners.click(); };
var figure;
const all = (node) => [node, ...node.children.flatMap((child) => (child instanceof Node ? all(child) : []))];
function open(name, attributes) {
  figure = new customElements.found[TinyViz.elementOf(name)](name);
  for (const [key, value] of Object.entries(attributes)) figure.setAttribute(key, value);
  figure.canvas = new Node("div");
  figure.canvas.clientWidth = 720;
  figure.summary = new Node("p");
  figure.replaceChildren(...figure.build());
  figure.redraw();
}
function controlOf(name) {
  const controls = Object.values({ ...figure.controls, ...figure.mask, ...figure.heads });
  return controls.find(({ input }) => input.getAttribute("name") === name);
}
function changed({ input }) { (input.listeners.input ?? input.listeners.change)(); }
function rows() {
  const bodies = all(figure).filter(({ tag }) => tag === "tbody");
  return bodies.flatMap((body) => body.children.map((row) => row.children.map((cell) => cell.textContent)));
}
"""


def page_text(page: str) -> str:
    """The source of a page of the book."""
    return (ROOT / "book" / "src" / f"{page}.md").read_text(encoding="utf-8")


def load_figures(context: MiniRacer) -> None:
    """Load the scripts of all figures, and what moves their controls."""
    for path in (VIZ / "still.js", *scripts()):
        context.eval(path.read_text(encoding="utf-8"))
    context.eval(HANDS)


class PlayedFigure:
    """A figure, freshly opened, with the attributes that a page gives it."""

    def __init__(self, context: MiniRacer, page: str, name: str) -> None:
        words = map(parse_figure, WORD.findall(page_text(page)))
        (figure,) = (each for each in words if each.name == name)
        self.context = context
        self.do(f"open({json.dumps(name)}, {json.dumps(figure.attributes)})")

    def do(self, code: str) -> Any:
        """What an expression of JavaScript gives."""
        return self.context.execute(f"({code}) ?? null")

    def move(self, control: str, value: str | int) -> None:
        """Set a slider to a value, or choose a word."""
        self.do(f"control = controlOf({json.dumps(control)}), control.value = {json.dumps(value)}")
        self.do("changed(control)")

    def each_position(self, control: str) -> Iterator[float]:
        """Pull a slider from its left end to its right end; the value at each position, or at 32 of them."""
        self.do(f"control = controlOf({json.dumps(control)}), 0")
        least, most = int(self.do("control.input.min")), int(self.do("control.input.max"))
        for position in [*range(least, most, 1 + (most - least) // 31), most]:
            self.do(f"control.input.value = {position}, changed(control)")
            yield self.do("control.value")

    def press(self) -> str:
        """Press the button in sight; what the figure says of it."""
        return str(self.do("figure.lead.click(), figure.event.textContent"))

    @property
    def button(self) -> str:
        """What the button in sight will do."""
        return str(self.do("figure.lead.textContent"))

    @property
    def summary(self) -> str:
        """The sentence with the numbers, without the commas in them."""
        return str(plain_numbers(self.do("figure.summary.textContent")))

    @property
    def rows(self) -> list[list[str]]:
        """The cells of the table, row by row."""
        return [[plain_numbers(cell) for cell in row] for row in self.do("rows()")]

    def column(self, index: int) -> list[float]:
        """The numbers in a column of the table."""
        return [float(row[index]) for row in self.rows]

    def sweep(self, control: str, look: Callable[[], float]) -> list[float]:
        """What one sees at each position of a slider, from left to right."""
        return [look() for _ in self.each_position(control)]
