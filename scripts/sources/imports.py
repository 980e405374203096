"""Imports in Python: a chunk of one binds several names, and each comes and goes by itself."""

import ast
from collections.abc import Mapping
from dataclasses import replace

from scripts.sources.chunks import Chunk

LINE_LENGTH = 110
Import = ast.Import | ast.ImportFrom


def import_in(text: str) -> Import:
    """The import that the text of a chunk is."""
    (statement, *_) = ast.parse(text).body
    assert isinstance(statement, Import)
    return statement


def origin(statement: Import) -> str:
    """The words in front of the names: `from .module import`; of a plain import all of it."""
    if isinstance(statement, ast.Import):
        return ast.unparse(statement)
    return f"from {'.' * statement.level}{statement.module or ''} import"


def aliases(statement: Import) -> dict[str, str]:
    """What a statement imports: `a as b` by the name that it binds."""
    is_plain = isinstance(statement, ast.Import)
    return {
        each.asname or (each.name.split(".")[0] if is_plain else each.name): ast.unparse(each)
        for each in statement.names
    }


def aliases_of(chunk: Chunk) -> dict[str, str]:
    """What an import's chunk imports: `a as b` by the name that it binds."""
    return aliases(import_in(chunk.text))


def with_aliases(chunk: Chunk, chosen: Mapping[str, str]) -> Chunk:
    """An import of these names instead, in the house's order and format; comments stay."""
    statement = import_in(chunk.text)
    words = sorted(chosen.values(), key=import_order)
    start = "import" if isinstance(statement, ast.Import) else origin(statement)
    line = f"{start} {', '.join(words)}"
    if len(line) > LINE_LENGTH:
        line = f"{start} (\n" + "".join(f"    {word},\n" for word in words) + ")"
    if "\r\n" in chunk.text:
        line = line.replace("\n", "\r\n")
    code = ast.get_source_segment(chunk.text, statement)
    assert code is not None
    return replace(chunk, text=chunk.text.replace(code, line, 1), names=tuple(chosen))


def import_order(code: str) -> tuple[int, str]:
    """Constants, then classes, then functions."""
    name = code.split()[0]
    return (0 if name.isupper() else 1 if name[:1].isupper() else 2), name
