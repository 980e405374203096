"""What the outcome of a day's tests depends on, as a digest: the key under which the outcome is remembered.

Every day depends on the tests, the tools and the machine. Of the learner's package, a day depends on the
modules that its tests import, directly or not, and on every module that importing the package runs and that
does more than define things. In doubt, it depends on the whole package.
"""

import ast
import hashlib
import os
import platform
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property, lru_cache
from importlib.metadata import distributions
from pathlib import Path

from kernel_runtime.native import BuildError, machine_key
from scripts.course import ROOT, Day
from scripts.learn.optional import chosen_gpu
from scripts.packages import NAME, STAND_ON_IT
from scripts.sources.files import Sources

FOLDERS = (
    *STAND_ON_IT,
    "kernel_runtime",
    "models",
    "scripts",
    "tests/days",
    "tests/support",
    "tiny_llm_ref",
)
FILES = ("course/course.toml", "pdm.lock", "pyproject.toml", "tests/__init__.py", "tests/conftest.py")
VARIABLES = re.compile(r"(TINY_LLM_(?!CACHE)|MLX_|OPENBLAS_|OMP_|PYTHON|PYTEST_ADDOPTS|CXX$|SDKROOT$)")
INIT = f"{NAME}/__init__.py"
EVERYTHING = f"{NAME}.*"
IMPORT = re.compile(r"^[ \t]*(from \S+ import (\([^)]*\)|[^\n(]+)|import [^\n]+)$", re.MULTILINE)
DYNAMIC = re.compile(r"\b(importlib|__import__|runpy|subprocess|sys\.modules)\b|(?<!\.)\b(exec|eval)\(")
"""Ways for a package to reach a module that no `import` names."""


def digest_of(parts: Iterable[str | bytes]) -> str:
    """A short digest of some texts in their order."""
    total = hashlib.sha256()
    for part in parts:
        total.update(hashlib.sha256(part.encode() if isinstance(part, str) else part).digest())
    return total.hexdigest()[:32]


@cache
def machine() -> str:
    """Digest of what lies outside the repository: versions, device, compiler, environment variables."""
    import mlx.core as mx  # here, so that the help of `progress` need not wait for it

    try:
        compiler = machine_key()
    except BuildError:
        compiler = "no compiler"
    packages = sorted(f"{each.name} {each.version}" for each in distributions())
    devices = [str(mx.default_device()), str(mx.metal.is_available()), str(mx.cuda.is_available())]
    variables = sorted(f"{name}={value}" for name, value in os.environ.items() if VARIABLES.match(name))
    computer = [sys.version, platform.platform(), platform.node(), str(os.cpu_count())]
    return digest_of([*computer, *devices, compiler, *packages, *variables])


def common_digest(root: Path = ROOT) -> str:
    """Digest of what every day depends on: files outside the learner's package, machine, chosen GPU."""
    files = [root / name for name in FILES]
    for folder in FOLDERS:
        found = sorted((root / folder).rglob("*"))
        files += [file for file in found if file.is_file() and "__pycache__" not in file.parts]
    content = [
        part for file in files if file.exists() for part in (str(file.relative_to(root)), file.read_bytes())
    ]
    return digest_of([machine(), chosen_gpu(), *content])


class Dependencies:
    """The files of a package that each day depends on.

    Args:
        sources: of the package, by their path within it.
        root: the folder that holds the tests.
    """

    def __init__(self, sources: Sources, root: Path = ROOT) -> None:
        self.sources = {f"{NAME}/{path.as_posix()}": source for path, source in sources.items()}
        self.root = root
        self._names: dict[str, set[str]] = {}
        self._files: dict[str, set[str]] = {}

    def digest(self, day: Day) -> str:
        """Digest of the files that a day depends on."""
        return digest_of(part for path in sorted(self.files(day)) for part in (path, self.sources[path]))

    def files(self, day: Day) -> set[str]:
        """The files that a day depends on, as `tiny_llm/...`; all of them if Python cannot parse one."""
        try:
            return self.reached_files(day)
        except (SyntaxError, ValueError):
            return set(self.sources)

    def reached_files(self, day: Day) -> set[str]:
        """The same for a package that Python can parse."""
        reached = self.reached_from([day.test_file.relative_to(ROOT).as_posix()])
        reached |= self.reached_from(self.running)
        if INIT in self.running or EVERYTHING in {name for path in reached for name in self.names(path)}:
            return set(self.sources)
        found = (reached & self.sources.keys()) | self.calling | {INIT}
        if any("__file__" in self.sources[path] for path in reached & self.sources.keys()):
            found |= self.sources.keys() - set(self.modules)
        return found

    @cached_property
    def modules(self) -> list[str]:
        """The package's files in Python."""
        return [path for path in self.sources if path.endswith(".py")]

    @cached_property
    def imported(self) -> Iterable[str]:
        """Modules that importing the package runs; all of them in doubt."""
        reached = self.reached_from([INIT])
        is_certain = all(EVERYTHING not in self.names(path) for path in reached)
        return reached & self.sources.keys() if is_certain else self.modules

    @cached_property
    def calling(self) -> set[str]:
        """Modules that the package imports and that then do more than define things."""
        return {path for path in self.imported if not only_defines(self.sources[path], may_call=False)}

    @cached_property
    def running(self) -> set[str]:
        """Those that do more than define things and assign what a call returns."""
        return {path for path in self.calling if not only_defines(self.sources[path], may_call=True)}

    def reached_from(self, start: Iterable[str]) -> set[str]:
        """Files that these import, directly or not, themselves included."""
        todo, reached = list(start), set[str]()
        while todo:
            path = todo.pop()
            if path not in reached:
                reached.add(path)
                todo += [file for name in self.names(path) for file in self.files_of(name)]
        return reached

    def names(self, path: str) -> set[str]:
        """Dotted names that a file imports, resolved; EVERYTHING in doubt."""
        if path not in self._names:
            is_own = path in self.sources
            text = self.sources[path] if is_own else imports_in((self.root / path).read_text("utf-8"))
            self._names[path] = {each for name in imported_by(path, text) for each in self.resolved(name)}
            if is_own and DYNAMIC.search(text):
                self._names[path].add(EVERYTHING)
        return self._names[path]

    def resolved(self, name: str) -> list[str]:
        """A dotted name, or what it is in the module from which the package's `__init__` imports it."""
        is_known = name.split(".")[0] != NAME or self.files_of(name)
        return [name] if is_known else self.exports.get(name, [EVERYTHING])

    @cached_property
    def exports(self) -> Mapping[str, list[str]]:
        """Where the package's `__init__` imports each of its names from."""
        found: dict[str, list[str]] = {}
        for node in ast.walk(tree_of(self.sources[INIT])):
            for alias, name in imports_of(node, INIT):
                found.setdefault(f"{NAME}.{alias}", []).append(name if self.files_of(name) else EVERYTHING)
        return found

    def files_of(self, name: str) -> set[str]:
        """Files that importing a name runs, without the package's `__init__`; all files of a folder."""
        if name not in self._files:
            parts = name.split(".")
            folders = ["/".join(parts[:length]) for length in range(1, len(parts) + 1)]
            paths = {path for folder in folders for path in (f"{folder}/__init__.py", f"{folder}.py")}
            within = {path for path in self.modules if path.startswith(f"{folders[-1]}/")}
            self._files[name] = {path for path in paths if self.exists(path)} | (within - {INIT})
        return self._files[name]

    def exists(self, path: str) -> bool:
        """Whether the package (without its `__init__`), the tests or the tools have this file."""
        if path.startswith(f"{NAME}/"):
            return path in self.sources and path != INIT
        folders = ("kernel_runtime", "scripts", "tests", *STAND_ON_IT)
        return path.split("/")[0] in folders and (self.root / path).is_file()


@lru_cache(maxsize=1024)
def tree_of(source: str) -> ast.Module:
    """The syntax tree of a source."""
    return ast.parse(source)


def imports_in(source: str) -> str:
    """The import statements of a formatted file: faster than parsing it."""
    return "\n".join(textwrap.dedent(match[0]) for match in IMPORT.finditer(source))


@lru_cache(maxsize=1024)
def imported_by(path: str, source: str) -> frozenset[str]:
    """Dotted names that a file imports anywhere; EVERYTHING where it imports the package itself."""
    found = [pair for node in ast.walk(tree_of(source)) for pair in imports_of(node, path)]
    return frozenset(EVERYTHING if NAME in pair else pair[1] for pair in found)


def imports_of(node: ast.AST, path: str) -> Iterator[tuple[str, str]]:
    """The names that an import statement binds, each with the dotted name it stands for."""
    if isinstance(node, ast.Import):
        for each in node.names:
            yield each.asname or each.name.split(".")[0], each.name
    elif isinstance(node, ast.ImportFrom):
        folders = path.split("/")[:-1]
        package = folders[: len(folders) - node.level + 1] if node.level else []
        for each in node.names:
            yield each.asname or each.name, ".".join([*package, *filter(None, [node.module]), each.name])


def only_defines(source: str, may_call: bool) -> bool:
    """Whether a module only imports, defines and assigns; what a call returns only if it `may_call`."""
    return all(is_definition(statement, may_call) for statement in tree_of(source).body)


def is_definition(node: ast.stmt, may_call: bool) -> bool:
    """Whether a statement of a module or class does no more than that."""
    if isinstance(node, ast.ClassDef):
        return all(is_definition(statement, may_call) for statement in node.body)
    if isinstance(node, ast.If):
        is_hint = ast.unparse(node.test) == "TYPE_CHECKING"
        return is_hint and all(is_definition(statement, may_call) for statement in node.orelse)
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        calls = {ast.unparse(each.func) for each in ast.walk(node) if isinstance(each, ast.Call)}
        return all(is_name(target) for target in targets) and (may_call or calls <= {"field"})
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    return isinstance(node, ast.Import | ast.ImportFrom | functions | ast.Pass)


def is_name(target: ast.expr) -> bool:
    """Whether the target of an assignment is a name, or several."""
    return all(isinstance(each, ast.Name) for each in getattr(target, "elts", [target]))
