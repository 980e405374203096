"""The package at any stage of the course, made from the reference: bodies of unsolved symbols become holes.

`render` keeps signatures, types and docstrings. Of the solution nothing else stays: private helpers,
constants and imports that only the removed bodies used go with them.
"""

import ast
import functools
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from scripts import render_c
from scripts.course import ROOT, Course, Day, Task, load_course

REFERENCE = ROOT / "tiny_llm_ref"
SHARED = ROOT / "kernel_runtime"
SUFFIXES = (".py", ".cpp", ".h", ".metal", ".cu")  # of a package's sources
Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef


@functools.lru_cache(maxsize=256)
def parse(source: str) -> ast.Module:
    """The tree of a source, which nobody changes."""
    return ast.parse(source)


@dataclass(frozen=True)
class Edit:
    """Lines `first` to `last` of a source, counted from 1 and both included, become `text`."""

    first: int
    last: int
    text: str


def render(solved: Collection[str], course: Course | None = None) -> dict[Path, str]:
    """Sources of the package by their path within it.

    Args:
        solved: ids of the tasks that are solved, as `Task.id` writes them ("2.7.1").
        course: the map; that of the repository unless given.
    """
    tasks = [(day, task) for day in (course or load_course()).days for task in day.tasks]
    return tidy(
        {path: render_module(source, path, tasks, solved) for path, source in read_reference().items()}
    )


def read_reference() -> dict[Path, str]:
    """Sources of the reference by their path within it."""
    files = source_files(REFERENCE)
    return {path.relative_to(REFERENCE): path.read_text(encoding="utf-8") for path in files}


def source_files(package: Path) -> list[Path]:
    """The files of a package that are its sources."""
    return sorted(path for path in package.rglob("*") if path.suffix in SUFFIXES and path.is_file())


def is_python(path: Path) -> bool:
    """Whether a source is Python; if not it is C++, Metal or CUDA."""
    return path.suffix == ".py"


def module_name(path: Path) -> str:
    """The dotted name of a source, as course.toml writes it."""
    return ".".join(path.with_suffix("").parts)


def render_module(
    source: str, path: Path, tasks: Collection[tuple[Day, Task]], solved: Collection[str]
) -> str:
    """One source with a hole for each function of an unsolved task; the source itself without any."""
    if not is_python(path):
        owned = owned_functions(source, path, tasks)
        return render_c.render_c(source, sentences(source, path, tasks, solved), owned)
    dug = dig_holes(source, path, tasks, solved)
    return dug if dug == source else drop_unused(dug)


def dig_holes(
    source: str, path: Path, tasks: Collection[tuple[Day, Task]], solved: Collection[str] = ()
) -> str:
    """One source with those holes in which all else is still there."""
    if not is_python(path):
        return render_c.dig_holes(source, sentences(source, path, tasks, solved))
    functions = owners(parse(source), module_name(path), tasks)
    texts = sentences(source, path, tasks, solved)
    return apply(source, [make_hole(functions[name][0], sentence) for name, sentence in texts.items()])


def sentences(
    source: str, path: Path, tasks: Collection[tuple[Day, Task]], solved: Collection[str]
) -> dict[str, str]:
    """What the hole of each function of an unsolved task says."""
    return {
        name: f"week {day.week} day {day.day} task {task.number}: {name} is not written yet"
        for name, (day, task) in owned_functions(source, path, tasks).items()
        if task.id not in solved
    }


def owned_functions(
    source: str, path: Path, tasks: Collection[tuple[Day, Task]]
) -> dict[str, tuple[Day, Task]]:
    """The task that asks for each function of a source, by its dotted name; a header has none.

    Raises:
        KeyError: a task asks for a function that is not there.
    """
    if is_python(path):
        found = owners(parse(source), module_name(path), tasks)
        return {name: (day, task) for name, (_, day, task) in found.items()}
    if path.suffix == ".h":
        return {}
    asked = {name: (day, task) for name, day, task in symbols_of(module_name(path), tasks)}
    for name in asked:
        if not render_c.has_function(source, name):
            raise KeyError(f"{path} has no function {name}")
    return asked


def symbols_of(module: str, tasks: Collection[tuple[Day, Task]]) -> list[tuple[str, Day, Task]]:
    """What tasks ask for in a module, by dotted names; a class sorts before its members."""
    return sorted(
        (symbol.removeprefix(f"{module}."), day, task)
        for day, task in tasks
        for symbol in task.symbols
        if symbol.startswith(f"{module}.")
    )


def owners(
    tree: ast.Module, module: str, tasks: Collection[tuple[Day, Task]]
) -> dict[str, tuple[Function, Day, Task]]:
    """The task that asks for each function, by its dotted name; one listed by itself is not its class's."""
    return {  # members override their class
        path: (function, day, task)
        for name, day, task in symbols_of(module, tasks)
        for path, function in functions_of(find(tree, name.split(".")), name)
    }


def find(tree: ast.AST, path: list[str]) -> Definition:
    """The definition that a dotted name leads to; KeyError if there is none."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Definition) and node.name == path[0]:
            return node if len(path) == 1 else find(node, path[1:])
    raise KeyError(".".join(path))


def functions_of(node: Definition, path: str) -> list[tuple[str, Function]]:
    """The function itself, or every method of a class, each with its dotted name."""
    if isinstance(node, Function):
        return [(path, node)]
    return [(f"{path}.{child.name}", child) for child in node.body if isinstance(child, Function)]


def make_hole(function: Function, sentence: str) -> Edit:
    """Replace a body, but for its docstring, by an error that says what is not written yet."""
    has_docstring = ast.get_docstring(function) is not None
    first = function.body[1] if has_docstring and len(function.body) > 1 else function.body[0]
    first_line = (function.body[0].end_lineno or 0) + 1 if has_docstring else first.lineno
    indent = " " * function.body[0].col_offset
    assert function.end_lineno is not None
    return Edit(first_line, function.end_lineno, f'{indent}raise NotImplementedError("{sentence}")\n')


def apply(source: str, edits: Collection[Edit]) -> str:
    """The source with its edits, which must not overlap."""
    lines = source.splitlines(keepends=True)
    for edit in sorted(edits, key=lambda edit: edit.first, reverse=True):
        lines[edit.first - 1 : edit.last] = [edit.text] if edit.text else []
    return "".join(lines)


def drop_unused(source: str) -> str:
    """Remove private definitions and constants that nothing uses, until none is left."""
    while True:
        tree = parse(source)
        edits = unused_definitions(tree, used_names(tree))
        if not edits:
            return source
        source = apply(source, edits)


def tidy(sources: Mapping[Path, str]) -> dict[Path, str]:
    """The sources; those in Python without the imports that nothing uses any more, in the house's format."""
    faces = ["--per-file-ignores", "__init__.py:F401"]  # they import names for others to use
    python = [path for path in sources if is_python(path)]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write({path: sources[path] for path in python}, root)
        for arguments in (["check", "--fix", "--select", "F401,TC005,I", *faces], ["format"]):
            command = [
                sys.executable,
                "-m",
                "ruff",
                *arguments,
                "--quiet",
                "--config",
                str(ROOT / "pyproject.toml"),
            ]
            subprocess.run([*command, "--no-cache", str(root)], check=True)
        return {**sources, **{path: (root / path).read_text(encoding="utf-8") for path in python}}


def write(sources: Mapping[Path, str], package: Path) -> None:
    """Write a package's sources into its folder, made if it is not there."""
    for path, source in sources.items():
        file = package / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(source.encode())


def used_names(tree: ast.AST) -> set[str]:
    """Every name a module reads, as variable, attribute or in an annotation written as a string."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            names.add(node.value)
    return names


def unused_definitions(tree: ast.Module, used: set[str]) -> list[Edit]:
    """Edits that remove unused private functions, methods and classes, and unused constants."""
    edits = []
    bodies: list[list[ast.stmt]] = [
        tree.body,
        *(node.body for node in tree.body if isinstance(node, ast.ClassDef)),
    ]
    for body in bodies:
        for position, node in enumerate(body):
            if isinstance(node, Definition):
                is_unused = (
                    node.name.startswith("_") and not node.name.endswith("__") and node.name not in used
                )
            else:
                is_unused = (
                    body is tree.body and constant_name(node) is not None and constant_name(node) not in used
                )
            if is_unused:
                edits.append(removal(body, position))
    return edits


def constant_name(node: ast.stmt) -> str | None:
    """The name in capitals that a statement binds, if it does."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        name = node.targets[0].id
        return name if name.isupper() else None
    return None


def removal(body: list[ast.stmt], position: int) -> Edit:
    """Remove a statement, its decorators, and the string that documents a constant."""
    node = body[position]
    decorators = node.decorator_list if isinstance(node, Definition) else []
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    last = node.end_lineno or node.lineno
    if not isinstance(node, Definition) and position + 1 < len(body):
        following = body[position + 1]
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            last = following.end_lineno or last
    return Edit(first, last, "")
