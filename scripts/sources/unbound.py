"""Names that code uses and nothing in its package defines.

If the reference has a helper of such a name, that helper is what the code counts on.
"""

import ast
import builtins
import functools
import re
import symtable
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from scripts.sources.c_source import mask
from scripts.sources.files import HEADERS, is_python


def unbound(path: Path, sources: Mapping[Path, str], names: Collection[str]) -> set[str]:
    """Those of some names that a source or, if they are methods, its package uses and does not define.

    Args:
        path: of the source.
        sources: of the package, by path.
        names: as the source would define them: `helper`, or `Reader.next`.
    """
    if not is_python(path):
        headers = "\n".join(source for other, source in sources.items() if other.suffix in HEADERS)
        known = set(re.findall(r"\w+", mask(headers)))
        return {name for name in names if is_called_in_c(name, mask(sources[path])) and name not in known}
    methods = {name for name in names if "." in name}
    package = [attributes_of(source) for other, source in sources.items() if methods and is_python(other)]
    return {name for name in methods if is_unbound_method(name, package)} | (
        unbound_globals(sources[path]) & set(names) - methods
    )


def is_called_in_c(name: str, code: str) -> bool:
    """Whether code without comments calls a function of this name."""
    return re.search(rf"(?<![.\w])(?<!->){re.escape(name)}\s*(?:<[^;{{}}]*>\s*)?\(", code) is not None


def unbound_globals(source: str) -> set[str]:
    """The global names that a source in Python reads and does not bind."""
    top = symtable.symtable(source, "source", "exec")
    bound = {each.get_name() for each in top.get_symbols() if each.is_assigned() or each.is_imported()}
    return set(globals_read(top)) - bound - set(dir(builtins))


def globals_read(table: symtable.SymbolTable) -> Iterator[str]:
    """The global names that a scope and those inside it read."""
    for each in table.get_symbols():
        if each.is_referenced() and (each.is_global() or table.get_type() == "module"):
            yield each.get_name()
    for child in table.get_children():
        yield from globals_read(child)


@dataclass(frozen=True)
class Attributes:
    """How a source in Python uses attributes.

    Attributes:
        called: names that it calls on anything, as in `x.name()`.
        called_on_self: class and name of those that a method calls on its own instance.
        stored: names that it assigns to, or that a string spells.
        members: names that each class defines.
        bases: names of each class's bases.
    """

    called: frozenset[str]
    called_on_self: frozenset[tuple[str, str]]
    stored: frozenset[str]
    members: Mapping[str, frozenset[str]]
    bases: Mapping[str, frozenset[str]]


@functools.lru_cache(maxsize=512)
def attributes_of(source: str) -> Attributes:
    """How a source in Python uses attributes."""
    nodes = [*ast.walk(ast.parse(source))]
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    stored = {
        node.attr for node in nodes if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load)
    }
    spelt = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return Attributes(
        called=frozenset(call.attr for call in attribute_calls(nodes)),
        called_on_self=frozenset(
            (node.name, call.attr)
            for node in classes
            for call in attribute_calls(ast.walk(node))
            if isinstance(call.value, ast.Name) and call.value.id in ("self", "cls")
        ),
        stored=frozenset(stored | spelt),
        members={node.name: frozenset(members_of(node)) for node in classes},
        bases={
            node.name: frozenset(ast.unparse(base).rpartition(".")[2] for base in node.bases)
            for node in classes
        },
    )


def attribute_calls(nodes: Iterable[ast.AST]) -> Iterator[ast.Attribute]:
    """The attributes that are called."""
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node.func


def members_of(node: ast.ClassDef) -> Iterator[str]:
    """The names that a class binds in its body."""
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement.name
        else:
            names = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
            yield from (each.id for each in names if isinstance(each.ctx, ast.Store))


def is_unbound_method(name: str, package: Iterable[Attributes]) -> bool:
    """Whether a package calls a method that it does not define: on `self` in this class, or on anything."""
    owner, _, method = name.rpartition(".")
    sources = [*package]
    if any(method in source.stored for source in sources):
        return False
    defining = {each for source in sources for each, names in source.members.items() if method in names}
    if any((owner, method) in source.called_on_self for source in sources):
        return not defining & family(owner, sources)
    return not defining and any(method in source.called for source in sources)


def family(name: str, package: Iterable[Attributes]) -> set[str]:
    """A class and those of the package that inherit from it or from which it inherits, directly or not."""
    bases: dict[str, set[str]] = defaultdict(set)
    for source in package:
        for each, of_class in source.bases.items():
            bases[each] |= of_class
    found, size = {name}, 0
    while size < len(found):
        size = len(found)
        found |= {each for each, of_class in bases.items() if of_class & found}
        found |= {base for each in found & bases.keys() for base in bases[each] & bases.keys()}
    return found
