"""What stands in backticks: names, paths, commands and options that must exist.

A name is known if the packages have it; a bare word is only looked at if it is written like a name of code,
with an underscore or with several capitals, and then must occur somewhere in the sources of the course.
"""

import ast
import builtins
import functools
import importlib
import re
from collections.abc import Collection, Iterator
from types import ModuleType

from scripts.book.commands import SETTING, all_options, check_option_names
from scripts.book.problems import ChapterError
from scripts.book.symbols import all_sources
from scripts.course import COURSE, ROOT
from scripts.sources.files import is_python, module_name

SUFFIX = re.compile(r"\.(py|toml|md|cpp|cuh?|metal|h|json|txt|lock|svg|js|yml|gguf|safetensors)$")
PATH = re.compile(r"[\w.-]+(/[\w.*-]+)*/?$")
DOTTED = re.compile(r"(?P<name>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?P<call>\(.*\))?$", re.S)
LIKE_CODE = re.compile(r"[A-Za-z]\w*_\w+$|_\w+$|[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]*)+$")
MODULES = {"mx": "mlx.core", "mlx": "mlx", "np": "numpy", "numpy": "numpy", "nn": "mlx.nn", "math": "math"}
SOURCE_FOLDERS = ("kernel_runtime", "tiny_llm_ref", "http_server", "scripts", "benches", "models")


def check_code(code: str, foreign: Collection[str], page: str) -> None:
    """Refuse code in backticks that names what does not exist.

    Args:
        code: what is between the backticks.
        foreign: names that belong to other programs.
        page: the page's source; names that its own fences bind are known.
    """
    code = " ".join(code.split())
    if code in foreign:
        return
    if "pdm run " in code:
        if not re.search(r"pdm run ([A-Z.<]|python |$)", code):
            check_option_names(code[code.index("pdm run ") :])
    elif re.fullmatch(r"--[a-z][\w-]*(=\S+| [\w./-]+)?", code):
        check_option(code)
    elif PATH.match(code) and is_path(code):
        check_path(code)
    elif match := DOTTED.match(code):
        check_name(match["name"], match["call"] is not None, foreign, page)
    elif SETTING.match(code):
        check_word(code.partition("=")[0], foreign, page)


def check_option(code: str) -> None:
    """Refuse an option that no command has."""
    name = re.split("[= ]", code)[0]
    if name not in all_options():
        raise ChapterError(f"no command has the option `{name}`")


def is_path(code: str) -> bool:
    """Whether code in backticks means a file or folder: it ends like one, or starts in this repository."""
    return bool(SUFFIX.search(code)) or ("/" in code and (ROOT / code.split("/")[0]).exists())


def check_path(code: str) -> None:
    """Refuse a path that neither the repository nor the package has."""
    path = code.rstrip("/")
    if path.split("/")[0] == "tiny_llm":  # what learners have there is theirs
        path = path.replace("tiny_llm", "tiny_llm_ref", 1)
    roots = [
        ROOT,
        ROOT / "tiny_llm_ref",
        ROOT / "tests",
        ROOT / "scripts",
        ROOT / "course",
        *(ROOT / "models").iterdir(),
    ]
    if "*" in path:
        found = any(any(root.glob(path)) for root in roots if root.is_dir())
    else:
        found = any((root / path).exists() for root in roots)
    if not found and "/" not in path:
        found = any(file.name == path for file in all_sources())
    if not found:
        raise ChapterError(f"there is no `{code}`")


def check_name(name: str, is_call: bool, foreign: Collection[str], page: str) -> None:
    """Refuse a name that the packages do not have."""
    first, *rest = name.split(".")
    if name in foreign or first in foreign or len(first) == 1:
        return
    if first in MODULES and rest:
        known = has_attribute(MODULES[first], *rest)
    elif rest and (members := members_by_class().get(first)) is not None:
        known = rest[0] in members
    elif rest:
        known = is_dotted_symbol(first, rest) or is_member(rest[-1]) or is_bound_by(page, first)
    elif is_call:
        known = first in defined_names() or hasattr(builtins, first) or is_member(first)
        known = known or is_bound_by(page, first)
    else:
        check_word(name, foreign, page)
        return
    if not known:
        raise ChapterError(f"the packages have no `{name}`")


def check_word(word: str, foreign: Collection[str], page: str) -> None:
    """Refuse a bare word that looks like a name of code and occurs in no source."""
    is_known = word in foreign or word in all_words() or hasattr(builtins, word) or is_bound_by(page, word)
    if LIKE_CODE.match(word) and not is_known:
        raise ChapterError(f"`{word}` occurs nowhere in the sources of the course")


def is_dotted_symbol(first: str, rest: list[str]) -> bool:
    """Whether `first` is a module of the package that has `rest[0]`, or a package that has the module."""
    dotted = rest if first == "tiny_llm" else [first, *rest]
    for path, source in all_sources().items():
        parts = module_name(path).split(".")
        for name in (parts, parts[-1:]):
            if dotted[: len(name)] == name:
                below = dotted[len(name) : len(name) + 1]
                return not below or re.search(rf"\b{below[0]}\b", source) is not None
    return False


def is_member(name: str) -> bool:
    """Whether some class of the packages has a member of that name, or MLX's array does."""
    return any(name in members for members in members_by_class().values()) or has_attribute(
        "mlx.core", "array", name
    )


def is_bound_by(page: str, name: str) -> bool:
    """Whether a fence of the page assigns, defines or imports the name."""
    return (
        re.search(
            rf"^ *(?:{name}\b[^=\n]*=(?!=)|(?:def|class) {name}\b|(?:from|import) .*\b{name}\b)", page, re.M
        )
        is not None
    )


@functools.cache
def has_attribute(module: str, *names: str) -> bool:
    """Whether a module has an attribute, and that one the next, as far as they are written."""
    value: object = importlib.import_module(module)
    for name in names:
        if not hasattr(value, name):
            if isinstance(value, ModuleType):
                try:
                    value = importlib.import_module(f"{value.__name__}.{name}")
                    continue
                except ImportError:
                    return False
            return False
        value = getattr(value, name)
    return True


@functools.cache
def members_by_class() -> dict[str, frozenset[str]]:
    """What each class of the reference and of the commands has: methods, fields, attributes set on self."""
    trees = {name: node for node in class_definitions() for name in [node.name]}
    return {name: frozenset(members_of(node, trees)) for name, node in trees.items()}


def class_definitions() -> Iterator[ast.ClassDef]:
    """Every class in the Python sources."""
    for text in python_sources():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                yield node


def members_of(node: ast.ClassDef, trees: dict[str, ast.ClassDef]) -> set[str]:
    """The members of a class and of those it inherits from."""
    members = {child.name for child in node.body if isinstance(child, ast.FunctionDef)}
    for child in ast.walk(node):
        target = child.target if isinstance(child, ast.AnnAssign) else None
        targets = child.targets if isinstance(child, ast.Assign) else [target]
        for each in targets:
            if isinstance(each, ast.Name):
                members.add(each.id)
            elif isinstance(each, ast.Attribute):
                members.add(each.attr)
    for base in node.bases:
        name = ast.unparse(base).split(".")[-1].split("[")[0]
        if name in trees and trees[name] is not node:
            members |= members_of(trees[name], trees)
        elif hasattr(builtins, name):
            members |= set(dir(getattr(builtins, name)))
    return members


@functools.cache
def defined_names() -> frozenset[str]:
    """Functions and classes of the sources, in any language, and parameters that are called."""
    names = {
        node.name
        for text in python_sources()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    for path, source in all_sources().items():
        if not is_python(path):
            names |= set(re.findall(r"\b(\w+)\(", source))
    return frozenset(names)


@functools.cache
def python_sources() -> tuple[str, ...]:
    """The Python of the packages, the commands and the benchmarks."""
    files = [file for folder in SOURCE_FOLDERS[:5] for file in sorted((ROOT / folder).rglob("*.py"))]
    return tuple(file.read_text(encoding="utf-8") for file in files)


@functools.cache
def all_words() -> frozenset[str]:
    """Every word in the sources, the tests and the files of the checkpoint."""
    suffixes = {".py", ".cpp", ".h", ".metal", ".cu", ".cuh", ".json", ".toml"}
    files = [
        file for folder in SOURCE_FOLDERS for file in (ROOT / folder).rglob("*") if file.suffix in suffixes
    ]
    files += [COURSE / "course.toml", ROOT / "pyproject.toml", *(ROOT / "tests").glob("[!b]*/*.py")]
    small = (file for file in files if file.stat().st_size < 500_000)
    return frozenset(word for file in small for word in re.findall(r"\w+", file.read_text(encoding="utf-8")))
