"""The imports of a module, one name put in or taken out at a time, sorted as the house sorts them."""

import ast
from collections.abc import Iterator

from scripts.render import parse
from scripts.source_lines import (
    LINE_LENGTH,
    Import,
    bound_name,
    remove_lines,
    replace_lines,
    split_lines,
)


def add_import(source: str, donor: str, statement: Import, alias: ast.alias) -> str:
    """Import a name: in the line that imports from its module already, or in one of its own."""
    present = import_statements(source)
    for node in present:
        if isinstance(node, ast.ImportFrom) and same_origin(node, statement):
            names = sorted([*node.names, alias], key=import_order)
            return replace_lines(source, node.lineno, node.end_lineno or 0, import_line(node, names))
    order = [origin(node) for node in import_statements(donor)]
    rank = order.index(origin(statement))
    above = [node for node in present if origin(node) in order[:rank]]
    below = [node for node in present if origin(node) in order[rank + 1 :]]
    text = import_line(statement, [alias])
    begins_section = bool(above and below) and section(above[-1]) != section(statement) == section(below[0])
    if above and not begins_section:
        same_section = section(above[-1]) == section(statement)
        text = text if same_section else "\n" + text
        at = above[-1].end_lineno or 0
        following = [node for node in present if node.lineno > at]
        if following and section(following[0]) != section(statement) and not same_section:
            text += "" if not split_lines(source)[at].strip() else "\n"
        return replace_lines(source, at + 1, at, text)
    if below:
        text += "" if section(below[0]) == section(statement) else "\n"
        return replace_lines(source, below[0].lineno, below[0].lineno - 1, text)
    body = parse(source).body
    is_documented = bool(body) and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    at = (body[0].end_lineno or 0) if is_documented else 0
    return replace_lines(source, at + 1, at, ("\n" if is_documented else "") + text)


def remove_import(source: str, name: str) -> str:
    """Take one name out of the imports, with its line where it is the only one."""
    for node in import_statements(source):
        rest = [alias for alias in node.names if bound_name(alias) != name]
        if len(rest) < len(node.names):
            last = node.end_lineno or node.lineno
            if rest:
                return replace_lines(source, node.lineno, last, import_line(node, rest))
            return remove_lines(source, node.lineno, last)
    return source


def import_statements(source: str) -> list[Import]:
    """The imports at the top of a module."""
    return [node for node in parse(source).body if isinstance(node, Import)]


def imports(source: str) -> Iterator[tuple[Import, ast.alias]]:
    """Every name imported at the top of a module, with its statement."""
    for node in import_statements(source):
        for alias in node.names:
            yield node, alias


def origin(node: Import) -> tuple[int, str]:
    """Dots and module that a statement imports from."""
    return (node.level, node.module or "") if isinstance(node, ast.ImportFrom) else (0, node.names[0].name)


def same_origin(node: Import, other: Import) -> bool:
    """Whether both import names from the same module."""
    return isinstance(other, ast.ImportFrom) and origin(node) == origin(other)


def section(node: Import) -> str:
    """The block that a statement belongs to: the standard library, other packages, or our own modules."""
    level, module = origin(node)
    if level:
        return "own"
    return "other" if module.split(".")[0] in {"mlx", "numpy", "mlx_lm"} else "standard"


def import_order(alias: ast.alias) -> tuple[int, str]:
    """Constants, then classes, then functions."""
    name = alias.name
    return (0 if name.isupper() else 1 if name[:1].isupper() else 2), name


def import_line(node: Import, names: list[ast.alias]) -> str:
    """The statement with these names, over several lines where one is too short."""
    words = [f"{alias.name} as {alias.asname}" if alias.asname else alias.name for alias in names]
    if isinstance(node, ast.Import):
        return f"import {', '.join(words)}\n"
    start = f"from {'.' * node.level}{node.module or ''} import "
    line = start + ", ".join(words)
    if len(line) <= LINE_LENGTH:
        return line + "\n"
    return start + "(\n" + "".join(f"    {word},\n" for word in words) + ")\n"
