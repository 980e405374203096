"""A source with other names for what it defines."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import libcst as cst
import libcst.matchers as m
from libcst.metadata import (
    Assignment,
    ByteSpanPositionProvider,
    ClassScope,
    GlobalScope,
    MetadataWrapper,
    ScopeProvider,
)

from scripts.sources.c_source import mask
from scripts.sources.files import is_python


def renamed(path: Path, source: str, names: Mapping[str, str]) -> str:
    """The source with these names instead, each as chunks have it among their words.

    In C++, Metal and CUDA a member of a struct keeps its name.
    """
    if is_python(path):
        return renamed_python(source, names)
    uses = re.finditer(rf"(?<![.\w])(?<!->)(?:{'|'.join(names)})\b", mask(source))
    for match in reversed([*uses]):
        source = source[: match.start()] + names[match[0]] + source[match.end() :]
    return source


def renamed_python(source: str, names: Mapping[str, str]) -> str:
    """The same of Python, in which a local variable may be called so as well."""
    wrapper = MetadataWrapper(cst.parse_module(source))
    spans = wrapper.resolve(ByteSpanPositionProvider)
    found = {node: names[name] for name, node in places_of(wrapper) if name in names}
    code = source.encode()
    for node, new in sorted(found.items(), key=lambda item: -spans[item[0]].start):
        start, end = spans[node].start, spans[node].start + spans[node].length
        keeps = isinstance(node, cst.ImportAlias)  # what it imports keeps its name
        code = (
            code[:start]
            + (code[start:end] + b" as " if keeps else b"")
            + new.lstrip(".").encode()
            + code[end:]
        )
    return code.decode()


def places_of(wrapper: MetadataWrapper) -> Iterator[tuple[str, cst.CSTNode]]:
    """Where each name stands that a module binds at its top, or with a dot in front in a class."""
    for attribute in m.findall(wrapper, m.Attribute()):
        node = cst.ensure_type(attribute, cst.Attribute).attr
        yield f".{node.value}", node
    for scope in set(wrapper.resolve(ScopeProvider).values()):
        if isinstance(scope, GlobalScope | ClassScope):
            for each in scope.assignments:
                assert isinstance(each, Assignment)
                name = f".{each.name}" if isinstance(scope, ClassScope) else each.name
                yield name, name_in(each.node, each.name)
                yield from ((name, use.node) for use in each.references)


def name_in(node: cst.CSTNode, name: str) -> cst.CSTNode:
    """The place in a definition where its name stands; the whole of `x` in `from y import x`."""
    if isinstance(node, cst.FunctionDef | cst.ClassDef):
        return node.name
    for alias in (cst.ensure_type(each, cst.ImportAlias) for each in m.findall(node, m.ImportAlias())):
        if (alias.evaluated_alias or alias.evaluated_name) == name:
            return alias.asname.name if alias.asname else alias
    return node
