"""What a test called, with the values it gave: the block of a `with` statement as a learner would type it."""

import ast
import linecache
from collections.abc import Mapping
from functools import cache
from types import FrameType
from typing import Any

LONGEST_VALUE = 40  # characters of a value that stands for its name
LONGEST_CALL = 90
PLAIN = (bool, int, float, str, bytes, tuple, list, dict, slice, range, type(None))
OWN_NAMES = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda)


def call_in_block(frame: FrameType, line: int) -> str | None:
    """The last statement of the `with` block at a line, its names replaced by short values of a frame."""
    block = find_block(frame.f_code.co_filename, line)
    if block is None or not isinstance(block.body[-1], ast.Expr | ast.Assign):
        return None
    expression = ast.parse(ast.unparse(block.body[-1].value), mode="eval").body
    try:
        text = ast.unparse(WithValues({**constants(frame.f_globals), **frame.f_locals}).visit(expression))
    except Exception:  # a sentence without its call is better than no sentence
        return None
    return text if len(text) <= LONGEST_CALL else f"{text[: LONGEST_CALL - 4]} ..."


def find_block(file: str, line: int) -> ast.With | None:
    """The innermost `with` statement whose head is at a line."""
    heads = [node for node in ast.walk(tree_of(file)) if isinstance(node, ast.With)]
    found = [node for node in heads if node.lineno <= line < node.body[0].lineno]
    return max(found, key=lambda node: node.lineno, default=None)


@cache
def tree_of(file: str) -> ast.Module:
    """A test file, parsed."""
    return ast.parse("".join(linecache.getlines(file)))


def constants(names: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers of a module that are written in capitals."""
    return {name: value for name, value in names.items() if name.isupper() and isinstance(value, int | float)}


class WithValues(ast.NodeTransformer):
    """Replaces names by what they stand for, where that is short and plain."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """A value for its name."""
        return self._written(self.values[node.id]) or node if node.id in self.values else node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Arguments one by one, those after a star as well, and a method by its own name."""
        keywords = [new for keyword in node.keywords for new in self._keywords(keyword)]
        arguments = [new for argument in node.args for new in self._arguments(argument)]
        return ast.Call(self._function(node.func), arguments, keywords)

    def visit(self, node: ast.AST) -> Any:
        """Leaves alone what has names of its own."""
        return node if isinstance(node, OWN_NAMES) else super().visit(node)

    def _function(self, node: ast.expr) -> ast.expr:
        value = self.values.get(node.id) if isinstance(node, ast.Name) else None
        name = getattr(value, "__qualname__", "<")
        return self.visit(node) if "<" in name else ast.Name(name)

    def _arguments(self, node: ast.expr) -> list[ast.expr]:
        value = self._value(node.value) if isinstance(node, ast.Starred) else None
        if not isinstance(value, tuple | list):
            return [self.visit(node)]
        written = [self._written(item) for item in value]
        return [item for item in written if item] if all(written) else [node]

    def _keywords(self, node: ast.keyword) -> list[ast.keyword]:
        pairs: list[tuple[Any, ast.expr | None]] = []
        if node.arg is None and isinstance(node.value, ast.Dict):
            pairs = [
                (self._value(key), self.visit(value))
                for key, value in zip(node.value.keys, node.value.values, strict=True)
            ]
        elif node.arg is None and isinstance(value := self._value(node.value), dict):
            pairs = [(key, self._written(item)) for key, item in value.items()]
        if pairs and all(isinstance(key, str) and item for key, item in pairs):
            return [ast.keyword(key, item) for key, item in pairs if item]
        return [ast.keyword(node.arg, self.visit(node.value))]

    def _value(self, node: ast.expr | None) -> Any:
        """What a name or a literal stands for; None if that is not known."""
        if isinstance(node, ast.Constant):
            return node.value
        return self.values.get(node.id) if isinstance(node, ast.Name) else None

    def _written(self, value: Any) -> ast.expr | None:
        if not isinstance(value, PLAIN):
            return None
        text = repr(value)
        return ast.Name(text) if len(text) <= LONGEST_VALUE else None
