"""Formulas by KaTeX while the book is built, so that readers need neither a script nor node."""

import functools
import json
import re

from py_mini_racer import MiniRacer

from scripts.book.problems import ChapterError
from scripts.course import ROOT

KATEX = ROOT / "book" / "theme" / "katex" / "katex.min.js"
RENDER = """
function render(tex, isDisplay) {
  try {
    return JSON.stringify({html: katex.renderToString(tex, {displayMode: isDisplay, strict: "error"})});
  } catch (error) {
    return JSON.stringify({error: String(error.message)});
  }
}
"""
BESIDE = re.compile(r"\\qquad(?![a-zA-Z])")
MARKDOWN = re.compile(r"[*_`\\\[\]|~$]")


@functools.cache
def engine() -> MiniRacer:
    """V8 with KaTeX in it."""
    racer = MiniRacer()
    racer.eval("var console = {log() {}, warn() {}, error() {}};")
    racer.eval(KATEX.read_text(encoding="utf-8"))
    racer.eval(RENDER)
    return racer


def render_math(tex: str, is_display: bool) -> str:
    """HTML on one line, in which Markdown finds nothing to change; ChapterError for bad TeX.

    Where several formulas stand side by side, a narrow page shows them one below the other.
    """
    parts = BESIDE.split(tex) if is_display else [tex]
    if len(parts) == 1:
        return render_one(tex, is_display)
    return f'<span class="formulas">{"".join(render_one(part, True) for part in parts)}</span>'


@functools.cache
def render_one(tex: str, is_display: bool) -> str:
    """The HTML of one formula."""
    answer = json.loads(str(engine().eval(f"render({json.dumps(tex)}, {json.dumps(is_display)})")))
    if "error" in answer:
        raise ChapterError(
            f"bad TeX: {' '.join(answer['error'].removeprefix('KaTeX parse error: ').split())}"
        )
    html = answer["html"].replace("\n", " ")
    return MARKDOWN.sub(lambda match: f"&#{ord(match[0])};", html)
