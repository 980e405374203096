"""Put single functions of one package into another, with what they need, and leave the rest as it is.

`fill` writes solutions into holes, `dig` makes holes again. Both map sources to sources; files are the
business of `scripts.learn.learner`, and sources that are not Python that of `scripts.patching_c`.
"""

import ast
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from scripts.import_lines import (
    add_import,
    imports,
    origin,
    remove_import,
)
from scripts.patching_c import dig_others, fill_others
from scripts.render import Definition, Function, constant_name, is_python, parse, used_names
from scripts.source_lines import (
    Import,
    Item,
    body_of,
    body_range,
    bound_name,
    find_function,
    find_item,
    functions,
    hole_of,
    is_bound,
    is_private,
    item_range,
    items,
    remove_lines,
    replace_lines,
    slice_lines,
    split_lines,
    start_of,
)

Sources = dict[Path, str]


def fill(
    sources: Mapping[Path, str], donor: Mapping[Path, str], symbols: Collection[tuple[Path, str]]
) -> Sources:
    """Write the donor's bodies into the holes among the symbols.

    Private helpers, constants and imports that these bodies need come along where the sources lack them.

    Args:
        sources: the package to complete, by path.
        donor: a package in which no symbol is a hole that is to be filled.
        symbols: path of the module and dotted name of each function.

    Returns:
        sources: all of them, changed or not.

    Raises:
        ValueError: a bracket of a source that is not Python has no partner.
    """
    result = {**sources, **fill_others(sources, donor, symbols)}
    needs: list[tuple[Path, ast.AST]] = []
    absent: list[tuple[Path, str]] = []
    bodies: list[tuple[Path, int, int, str]] = []
    for path, name in python_only(symbols):
        donated = find_function(parse(donor[path]), name)
        if donated is None or hole_of(donated):
            continue
        present = find_function(parse(sources[path]), name)
        if present is None and not is_bound(sources[path], name):
            absent.append((path, name))
            needs.append((path, donated))
        elif present is not None and (hole := hole_of(present)):
            body = slice_lines(donor[path], *body_range(donated))
            bodies.append((path, hole.lineno, hole.end_lineno or hole.lineno, body))
            needs += [(path, statement) for statement in donated.body]
    for path, first, last, body in sorted(bodies, reverse=True):  # so that lines above keep their numbers
        result[path] = replace_lines(result[path], first, last, body)
    for path, name in absent:
        result[path] = insert(result[path], donor[path], name)
    return supply(result, donor, needs)


def dig(
    sources: Mapping[Path, str],
    starter: Mapping[Path, str],
    reference: Mapping[Path, str],
    symbols: Collection[tuple[Path, str]],
) -> Sources:
    """Put the starter's text of the symbols back.

    What `fill` may have brought along goes too, if nothing uses it any more and it is still the reference's
    to the letter; a learner's own helpers stay.

    Args:
        sources: the package to change, by path.
        starter: the reference with the holes.
        reference: the package that `fill` took from.
        symbols: path of the module and dotted name of each function.

    Raises:
        ValueError: a symbol is there, but is no function any more, or a bracket has no partner.
    """
    result = {**sources, **dig_others(sources, starter, reference, symbols)}
    for path, name in python_only(symbols):
        present = find_function(parse(result[path]), name)
        if present is not None:
            text = slice_lines(starter[path], *item_range(starter[path], name))
            result[path] = replace_lines(result[path], *item_range(result[path], name), text)
        elif is_bound(result[path], name):
            raise ValueError(f"{name} in {path} is not a function any more: remove it and run this again")
        elif not is_private(name.split(".")[-1]):
            result[path] = insert(result[path], starter[path], name)
    for path in {path for path, _ in python_only(symbols)}:
        result[path] = drop_supplies(result[path], reference[path], used_names(parse(sources[path])))
    return result


def python_only(symbols: Collection[tuple[Path, str]]) -> list[tuple[Path, str]]:
    """Those of a source in Python."""
    return [(path, name) for path, name in symbols if is_python(path)]


def supply(sources: Sources, donor: Mapping[Path, str], needs: list[tuple[Path, ast.AST]]) -> Sources:
    """Bring what code from the donor uses and the sources lack, and what that uses, and so on."""
    needs = list(needs)
    while needs:
        path, code = needs.pop()
        for name in missing_definitions(sources[path], donor[path], code):
            sources[path] = insert(sources[path], donor[path], name)
            needs.append((path, find_item(donor[path], name).node))
        for statement, alias in missing_imports(sources[path], donor[path], code):
            sources[path] = add_import(sources[path], donor[path], statement, alias)
            origin = imported_file(path, statement, sources)
            if origin is not None and not is_bound(sources[origin], alias.name):
                needs.append((origin, ast.Name(alias.name, ast.Load())))
    return sources


def imported_file(path: Path, statement: Import, sources: Mapping[Path, str]) -> Path | None:
    """The file of the package that a statement imports names from; None if it is none of them."""
    if not isinstance(statement, ast.ImportFrom) or not statement.level or not statement.module:
        return None
    folder = path.parents[min(statement.level, len(path.parents)) - 1]
    module = folder.joinpath(*statement.module.split("."))
    return next(
        (file for file in (module.with_suffix(".py"), module / "__init__.py") if file in sources), None
    )


def missing_definitions(source: str, donor: str, code: ast.AST) -> list[str]:
    """Dotted names of the donor's definitions and constants that the code uses and the source lacks."""
    used = used_names(code)
    wanted = [
        name
        for item in items(parse(donor).body)
        for name in item.names
        if name in used and not isinstance(item.node, Import) and not is_bound(source, name)
    ]
    methods = [
        name
        for name, function in functions(parse(donor)).items()
        if "." in name and function.name in used and is_private(function.name) and not is_bound(source, name)
    ]
    return wanted + [name for name in methods if is_bound(source, name.split(".")[0])]


def missing_imports(source: str, donor: str, code: ast.AST) -> list[tuple[Import, ast.alias]]:
    """The donor's imports that the code uses and the source lacks."""
    used = used_names(code)
    return [
        (statement, alias)
        for statement, alias in imports(donor)
        if bound_name(alias) in used and not is_bound(source, bound_name(alias))
    ]


def insert(source: str, donor: str, name: str) -> str:
    """Put a definition of the donor where it stands there: after the neighbour above that both have."""
    owner, _, _ = name.rpartition(".")
    item, tree = find_item(donor, name), parse(source)
    siblings = items(body_of(parse(donor), owner))
    position = siblings.index(item)
    if touching := present_below(source, owner, siblings[position : position + 2]):
        return replace_lines(
            source, touching.first, touching.first - 1, slice_lines(donor, item.first, item.last)
        )
    anchor = find_anchor(tree, owner, siblings[:position])
    gap = 1 if owner else 2
    above = gap if isinstance(anchor, Definition) or isinstance(item.node, Definition) else 1
    both_constants = isinstance(anchor, ast.Assign | ast.AnnAssign) and not isinstance(item.node, Definition)
    if both_constants and item.first - siblings[position - 1].last == 1:
        above = 0
    at = end_of(tree, owner, anchor)
    lines = split_lines(source)
    while at < len(lines) and lines[at].lstrip().startswith("#"):
        at += 1
    text = "\n" * above + slice_lines(donor, item.first, item.last)
    return replace_lines(source, at + 1, at, text + "\n" * missing_gap(source, owner, at, item, gap))


def missing_gap(source: str, owner: str, at: int, item: Item, gap: int) -> int:
    """Blank lines to add below an item inserted after line `at`, of the `gap` that a definition asks for."""
    following = [each for each in items(body_of(parse(source), owner)) if each.first > at]
    if not any(isinstance(each.node, Definition) for each in [item, *following[:1]]):
        return 0
    blank = 0
    rest = split_lines(source)[at:]
    while blank < len(rest) and not rest[blank].strip():
        blank += 1
    return max(0, gap - blank) if blank < len(rest) else 0


def present_below(source: str, owner: str, pair: list[Item]) -> Item | None:
    """The donor's next item where the source has it, if the donor leaves no line between the two."""
    if len(pair) < 2 or pair[1].first != pair[0].last + 1:
        return None
    return next((item for item in items(body_of(parse(source), owner)) if item.names == pair[1].names), None)


def find_anchor(tree: ast.Module, owner: str, above: list[Item]) -> ast.stmt | None:
    """What to insert after: the nearest item above that is there, else the imports, else the docstring."""
    body = body_of(tree, owner)
    present = {name: item.node for item in items(body) for name in item.names}
    for item in reversed(above):
        if not isinstance(item.node, Import):
            for name in item.names:
                if name in present:
                    return present[name]
    if imported := [node for node in body if isinstance(node, Import | ast.If)]:
        return imported[-1]
    is_documented = bool(body) and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    return body[0] if is_documented else None


def end_of(tree: ast.Module, owner: str, anchor: ast.stmt | None) -> int:
    """The line to insert after."""
    body = body_of(tree, owner)
    for item in items(body):
        if item.node is anchor:
            return item.last
    if anchor is not None:
        return anchor.end_lineno or anchor.lineno
    return start_of(body[0]) - 1 if body else 0


def drop_supplies(source: str, reference: str, used_before: set[str]) -> str:
    """Remove what is private or a constant and unused, if it is a hole or the reference's to the letter."""
    while True:
        tree = parse(source)
        used = used_names(tree)
        for name, item in removable(tree):
            if name.split(".")[-1] not in used and is_none_of_the_learners(source, item, reference, name):
                source = remove_lines(source, item.first, item.last)
                break
        else:
            break
    known = {(origin(node), bound_name(alias)) for node, alias in imports(reference)}
    used = used_names(parse(source))
    for node, alias in reversed(list(imports(source))):
        name = bound_name(alias)
        if name in used_before - used and (origin(node), name) in known:
            source = remove_import(source, name)
    return source


def removable(tree: ast.Module) -> Iterator[tuple[str, Item]]:
    """Private definitions and constants, by dotted name."""
    for item in items(tree.body):
        if isinstance(item.node, Definition):
            if is_private(item.node.name):
                yield item.node.name, item
        elif constant_name(item.node):
            yield item.names[0], item
        if isinstance(item.node, ast.ClassDef):
            for member in items(item.node.body):
                if isinstance(member.node, Definition) and is_private(member.node.name):
                    yield f"{item.node.name}.{member.node.name}", member


def is_none_of_the_learners(source: str, item: Item, reference: str, name: str) -> bool:
    """Whether the reference has the same text under that name, or the source has a hole there."""
    if isinstance(item.node, Function) and hole_of(item.node):
        return True
    if not is_bound(reference, name):
        return False
    other = find_item(reference, name)
    text = slice_lines(source, item.first, item.last).replace("\r\n", "\n")
    return text == slice_lines(reference, other.first, other.last)
