"""Small changes to functions in Python, as `scripts.author.mutants` tries them."""

import ast
import copy
from collections.abc import Callable, Iterator
from functools import partial

Function = ast.FunctionDef | ast.AsyncFunctionDef
Change = tuple[str, object]
"""A field of a node, and its new value."""

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATIONS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.MatMult: ast.Mult,
    ast.BitAnd: ast.BitOr,
}


def functions(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    """Functions and methods with their dotted names; abstract ones and protocols have no body to change."""
    for node in tree.body:
        if isinstance(node, Function):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for child in node.body:
                if isinstance(child, Function) and not is_abstract(child):
                    yield f"{node.name}.{child.name}", child


def is_abstract(function: Function) -> bool:
    """Whether there is nothing but a docstring or dots."""
    return all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in function.body)


def mutations(tree: ast.Module, function: Function) -> Iterator[tuple[str, int, Callable[[], str]]]:
    """What is changed, on which line, and what makes the module with the change."""
    for index, (node, around) in enumerate(walk_code(function)):
        for description, change in changes(node):
            code = shown(around if isinstance(node, ast.Constant) else node)
            line = getattr(node, "lineno", function.lineno)
            yield f"{code!r} with {description}", line, partial(mutated, tree, function, index, change)


def mutated(tree: ast.Module, function: Function, index: int, change: Change) -> str:
    """The module with a change of one node of a function, the one that comes `index`-th in `walk_code`."""
    mutated_tree = copy.deepcopy(tree)
    node, _ = list(walk_code(twin_of(function, mutated_tree)))[index]
    setattr(node, *change)
    return ast.unparse(ast.fix_missing_locations(mutated_tree))


def shown(node: ast.AST) -> str:
    """The code of a node on one line: of a statement the first."""
    return ast.unparse(node).strip().splitlines()[0]


def twin_of(function: Function, tree: ast.Module) -> Function:
    """The same function in a copy of its module."""
    for node in ast.walk(tree):
        if isinstance(node, Function) and (node.lineno, node.name) == (function.lineno, function.name):
            return node
    raise KeyError(function.name)


def walk_code(function: Function) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Nodes of a body in a fixed order, without docstrings, annotations and the texts of errors.

    With each comes the node around it, which gives a number its meaning; a sign belongs to its number.
    """
    pending: list[tuple[ast.AST, ast.AST]] = [(node, function) for node in reversed(function.body)]
    while pending:
        node, around = pending.pop()
        if isinstance(node, ast.Raise | ast.JoinedStr) or is_text(node):
            continue
        yield node, around
        annotation = getattr(node, "annotation", None)
        children = [child for child in ast.iter_child_nodes(node) if child is not annotation]
        outer = around if isinstance(node, ast.UnaryOp) else node
        pending.extend((child, outer) for child in reversed(children))


def is_text(node: ast.AST) -> bool:
    """A docstring or another statement that is a string."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def changes(node: ast.AST) -> Iterator[tuple[str, Change]]:
    """Small changes to a node, each with what it is."""
    if isinstance(node, ast.Compare):
        for i, operator in enumerate(node.ops):
            new = COMPARISONS[type(operator)]
            operators = [*node.ops[:i], new(), *node.ops[i + 1 :]]
            yield f"{type(operator).__name__} to {new.__name__}", ("ops", operators)
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        other = OPERATIONS[type(node.op)]
        yield f"{type(node.op).__name__} to {other.__name__}", ("op", other())
    elif isinstance(node, ast.BoolOp):
        word = ast.Or if isinstance(node.op, ast.And) else ast.And
        yield f"{type(node.op).__name__} to {word.__name__}", ("op", word())
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        yield "condition negated", ("test", ast.UnaryOp(ast.Not(), node.test))
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        value = not node.value if isinstance(node.value, bool) else node.value + 1
        yield f"{node.value} to {value}", ("value", value)
    elif isinstance(node, ast.Return) and node.value and ast.unparse(node.value) != "None":
        yield "None returned", ("value", ast.Constant(None))
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "call left out", ("value", ast.Constant(None))
