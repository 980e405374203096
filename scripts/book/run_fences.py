"""Run the Python of a page, fence by fence in one namespace, where `tiny_llm` means the reference.

Reads a JSON list of {"code", "line"} from standard input and prints one of {"output"}; after a fence that
fails, {"error", "line"} is the last one.
"""

import ast
import contextlib
import io
import json
import sys
import traceback
from typing import Any

from scripts.hardware.precision import use_full_float32
from scripts.packages import choose_package

PAGE = "<page>"


def main() -> None:
    """Answer on standard output."""
    fences, namespace = json.load(sys.stdin), start(mine=False)
    answers: list[dict[str, Any]] = []
    for fence in fences:
        answers.append(run(fence["code"], fence["line"], namespace))
        if "error" in answers[-1]:
            break
    json.dump(answers, sys.stdout)


def start(mine: bool) -> dict[str, Any]:
    """The namespace of a page's first fence; `tiny_llm` means the reference, or the learner's own package."""
    use_full_float32()
    choose_package(reference=not mine)
    import mlx.core as mx

    mx.random.seed(0)
    return {"__name__": "__main__"}


def run(code: str, line: int, namespace: dict[str, Any]) -> dict[str, Any]:
    """What a fence prints, or the error it ends with and its line."""
    output = io.StringIO()
    try:
        tree = ast.increment_lineno(ast.parse(code), line - 1)
        with contextlib.redirect_stdout(output):
            exec(compile(tree, PAGE, "exec"), namespace)
    except Exception as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == PAGE]
        at = frames[-1].lineno if frames else line
        if isinstance(error, SyntaxError):
            at = line - 1 + (error.lineno or 1)
        first = next(iter(str(error).splitlines()), "")
        return {"error": f"{type(error).__name__}: {first}", "line": at}
    return {"output": output.getvalue()}


if __name__ == "__main__":
    main()
