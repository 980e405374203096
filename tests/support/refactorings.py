"""Changes of a package that mean nothing: its modules moved, reordered, renamed inside, reformatted."""

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import libcst as cst
from libcst.metadata import ComprehensionScope, FunctionScope, MetadataWrapper, ScopeProvider

from scripts.sources.files import is_python, write
from scripts.sources.tokens import DECLARED
from tests.support.shelves import package_of


def moved(sources: Mapping[Path, str]) -> dict[Path, str]:
    return {
        Path("elsewhere", path.parent, f"{path.parent.name}_folder", path.name): source
        for path, source in sources.items()
    }


class Reorder(cst.CSTTransformer):
    """Turns the order of definitions round, in a module and in a class."""

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:  # noqa: N802
        return False

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:  # noqa: N802
        return updated_node.with_changes(body=self.turned(updated_node.body))

    def leave_IndentedBlock(  # noqa: N802
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        return updated_node.with_changes(body=self.turned(updated_node.body))

    def turned(self, body: object) -> list[cst.BaseStatement]:
        statements = list(body)  # type: ignore[call-overload]
        places = [i for i, each in enumerate(statements) if isinstance(each, cst.FunctionDef)]
        for place, other in zip(places, [statements[i] for i in reversed(places)], strict=True):
            statements[place] = other
        return statements


class RenameVariables(cst.CSTTransformer):
    """Gives every variable and parameter of a function another name."""

    METADATA_DEPENDENCIES = (ScopeProvider,)

    def __init__(self, nodes: set[cst.CSTNode]) -> None:
        super().__init__()
        self.nodes = nodes

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Name:  # noqa: N802
        is_one = original_node in self.nodes
        return updated_node.with_changes(value=f"{updated_node.value}_renamed") if is_one else updated_node


def with_other_variables(sources: Mapping[Path, str]) -> dict[Path, str]:
    return {
        path: (renamed_python if is_python(path) else renamed_c)(source) for path, source in sources.items()
    }


def renamed_python(source: str) -> str:
    wrapper = MetadataWrapper(cst.parse_module(source))
    nodes: set[cst.CSTNode] = set()
    for scope in set(wrapper.resolve(ScopeProvider).values()):
        if isinstance(scope, FunctionScope | ComprehensionScope):
            for assignment in scope.assignments:
                node = getattr(assignment, "node", None)
                if isinstance(node, cst.Name | cst.Param):
                    nodes.add(node.name if isinstance(node, cst.Param) else node)
                    nodes.update(access.node for access in assignment.references)
    return wrapper.module.visit(RenameVariables(nodes)).code


def renamed_c(source: str) -> str:
    package = package_of(source, Path("kernel.cu"))
    for symbol in package.symbols.values():
        names = set(DECLARED.findall(symbol.code)) - {"T", "float", "int", "long"}
        if "(" in symbol.code.partition("{")[0] and names:
            pattern = rf"(?<![.>:\w])({'|'.join(map(re.escape, names))})\b(?!::)"
            source = source.replace(symbol.text, re.sub(pattern, r"\1_renamed", symbol.text))
    return source


def reordered(sources: Mapping[Path, str]) -> dict[Path, str]:
    return {
        path: cst.parse_module(source).visit(Reorder()).code if is_python(path) else source
        for path, source in sources.items()
    }


def reformatted(sources: Mapping[Path, str], folder: Path) -> dict[Path, str]:
    write({path: source for path, source in sources.items() if is_python(path)}, folder)
    options = [
        "--line-length=50",
        "--config=format.quote-style='single'",
        "--config=indent-width=2",
        "--isolated",
    ]
    subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", *options, folder], check=True)
    return {
        path: (folder / path).read_text(encoding="utf-8") if is_python(path) else reformatted_c(source)
        for path, source in sources.items()
    }


def reformatted_c(source: str) -> str:
    lines = source.split("\n")
    is_plain = [not re.match(r"\s*#|.*\\$|.*//", line) for line in lines]
    return "\n".join(
        re.sub(r"([;,]) ", r"\1\n    /* more */ ", line) if plain else line
        for line, plain in zip(lines, is_plain, strict=True)
    )
