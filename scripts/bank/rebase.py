"""Carry solutions of the banks across changes of the symbols that they are tied to, by three-way merges."""

import ast
import contextlib
import difflib
import functools
import io
import json
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scripts.bank.edits import Edit, make_edit, texts, toml_text
from scripts.bank.entries import check_source, read_entry
from scripts.bank.numbers import number_now
from scripts.course import ROOT, Course, Day
from scripts.setup import load_toml
from scripts.sources.files import REFERENCE, SHARED, SUFFIXES
from scripts.sources.symbols import Package, Symbol, symbols_of
from scripts.sources.tokens import canonical, tokens

MIN_LIKENESS = 0.6  # of two definitions, for one to be the other renamed
HEADS = re.compile(r"^\[\[(?:wrong|right|survivor)\]\]\n", re.M)
FIELDS = tuple(vars(Edit()))
KEPT = ("task", "name", "misconception", "style", "seen_in")
PIECES = {"lines": re.compile(r".*\n|.+"), "words": re.compile(r"\n *|\w+|[^\w\n]")}


def package_at(commit: str, root: Path = ROOT) -> Package:
    """The reference as it was at a commit.

    Raises:
        ValueError: git knows no such commit, or it has no reference.
    """
    sources = {}
    for folder, inside in ((REFERENCE, Path()), (SHARED, Path("..", SHARED.name))):
        command = ["git", "archive", f"{commit}:{folder.name}"]
        result = subprocess.run(command, cwd=root, capture_output=True)
        if result.returncode and folder == REFERENCE:
            reason = result.stderr.decode().strip()
            raise ValueError(f"{commit!r} is no commit with {folder.name}: {reason}")
        with tarfile.open(fileobj=io.BytesIO(result.stdout or bytes(10240))) as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isfile() else None
                if file is not None and Path(member.name).suffix in SUFFIXES:
                    sources[inside / member.name] = file.read().decode()
    return Package(sources)


def rebase_file(
    path: Path, day: Day, rebase: Callable[[Mapping[str, Any]], Mapping[str, Any]], old: Course
) -> list[str]:
    """Carry the entries of a file over, and say which need a human and why; they stay as they were.

    Args:
        rebase: carries an entry over, but for the number of its task.
        old: the map of the course as of the entries.
    """
    text = path.read_text(encoding="utf-8")
    header, *blocks = HEADS.split(text)
    left = []
    for index, block in enumerate(blocks):
        entry = load_toml(block)
        try:
            carried = {**rebase(entry), "task": number_now(day, entry["task"], old)}
            if carried != entry:
                blocks[index] = entry_text(carried) + ("\n" if block.endswith("\n\n") else "")
                read_entry(day, load_toml(blocks[index]))
        except ValueError as error:
            blocks[index] = block
            left.append(f"{path.name}: {day.week}.{day.day}.{entry['task']} {entry['name']}: {error}")
    path.write_text(HEADS.findall(text)[0].join([header, *blocks]), encoding="utf-8")
    return left


def rebase_survivors(path: Path, way: "Rebase") -> list[str]:
    """Give excused mutants the names that their functions have now, and say which functions are gone."""
    text = path.read_text(encoding="utf-8")
    header, *blocks = HEADS.split(text)
    left = []
    for index, block in enumerate(blocks):
        id = load_toml(block)["id"]
        name = id.partition(": ")[0]
        try:
            now = way.new.short_name(way.successor(way.old.find(name).key))
            blocks[index] = block.strip().replace(f"{name}: ", f"{now}: ", 1) + "\n"
        except ValueError as error:
            left.append(f"{path.name}: {id}: {error}")
    blocks.sort(key=lambda block: str(load_toml(block)["id"]))
    path.write_text(header + "\n".join(f"[[survivor]]\n{block}" for block in blocks), encoding="utf-8")
    return left


def entry_text(entry: Mapping[str, Any]) -> str:
    """An entry as TOML."""
    return "".join(
        f"{name} = {toml_text(value) if name in FIELDS else json.dumps(value, ensure_ascii=False)}\n"
        for name, value in entry.items()
    )


class Rebase:
    """The way from one version of the reference to another."""

    def __init__(self, old: Package, new: Package) -> None:
        self.old, self.new = old, new
        self.successor = functools.lru_cache(maxsize=None)(self.find_successor)

    def __call__(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """An entry as of the new version, made from one as of the old, in today's form or in the one before.

        Raises:
            ValueError: a human has to look at it; with the reason.
        """
        before, wrong = self.old_version(entry)
        now = self.successor(before.key)
        kept = {name: entry[name] for name in KEPT if name in entry}
        names = self.renamed_words(before, now, wrong)
        base, wrong = (replace_words(code, names) for code in (before.code, wrong))
        own = Edit(**{field: replace_words(entry.get(field, ""), names) for field in FIELDS})
        own = Edit() if "file" in entry else own.in_words_of(now)
        after = self.carried(base, wrong, now, own)
        if texts(after, now.is_python) == texts(now.code, now.is_python):
            raise ValueError(f"{now.key} is like that by now")
        if gone := (words(after, now) - words(now.code, now)) & (self.old.defined - self.new.words):
            raise ValueError(f"it uses {', '.join(sorted(gone))}, which is gone")
        check_source(now.path, now.replaced(after))
        if before.code == now.code and not names and "file" not in entry:
            return {**entry, "symbol": self.new.short_name(now)}
        still_fits = own.find and applied(own, now) == after
        edit = own if still_fits else make_edit(now.code, after, now.is_python)
        fields = {
            name: text for name, text in vars(edit).items() if text or (name == "replace" and edit.find)
        }
        return {**kept, "symbol": self.new.short_name(now), **fields}

    def old_version(self, entry: Mapping[str, Any]) -> tuple[Symbol, str]:
        """The symbol that an entry changes, as it was, and what the entry makes of it."""
        if "file" not in entry:
            symbol = self.old.find(entry["symbol"])
            return symbol, Edit(**{field: entry.get(field, "") for field in FIELDS}).code(symbol)
        path = Path(entry["file"])
        source = self.old.sources.get(path, "")
        if source.count(entry["find"]) != 1:
            raise ValueError(f"its text occurs {source.count(entry['find'])} times in {path}")
        return changed_symbol(path, source, source.replace(entry["find"], entry["replace"]))

    def find_successor(self, key: str) -> Symbol:
        """What has become of a symbol: one of the same name, or else the one most like it."""
        before = self.old.symbols[key]
        same = self.new.by_own_name.get(before.own_name, [])
        if len(same) == 1:
            return same[0]
        least = 0.0 if same else MIN_LIKENESS
        others = (symbol for symbol in self.new.symbols.values() if symbol.path.suffix == before.path.suffix)
        new = [symbol for symbol in others if symbol.own_name not in self.old.by_own_name]
        likeness = {symbol.key: like(before, symbol, least) for symbol in same or new}
        best = max(likeness, key=likeness.__getitem__, default=key)
        if likeness.get(best, -1.0) < least:
            raise ValueError(f"{key} is gone")
        return self.new.symbols[best]

    def renamed_words(self, before: Symbol, now: Symbol, wrong: str) -> dict[str, str]:
        """New names of the symbol and of others that its wrong version uses."""
        names = {last(before.name): last(now.name)} if last(before.name) != last(now.name) else {}
        for word in (words(wrong, before) & self.old.words) - self.new.words - names.keys():
            for key, symbol in self.old.symbols.items():
                if last(symbol.name) == word:
                    try:
                        names[word] = last(self.successor(key).name)
                    except ValueError:
                        continue
        return names

    def carried(self, base: str, wrong: str, now: Symbol, own: Edit) -> str:
        """The symbol as it is now with the change from base to wrong; ValueError if they conflict."""
        if base == now.code:
            return wrong
        for edit in (own, make_edit(base, wrong, now.is_python)):
            if edit.find and (made := applied(edit, now)):
                return made
        for pattern in PIECES.values():
            merged = merge(base, now.code, wrong, pattern)
            with contextlib.suppress(SyntaxError):
                if merged is not None:
                    ast.parse(merged if now.is_python else "")
                    return canonical(merged, now.is_python)
        raise ValueError(f"it conflicts with what became of {now.key}")


def applied(edit: Edit, now: Symbol) -> str | None:
    """What an edit makes of a symbol; None if it does not fit."""
    try:
        made = edit.code(now)
        check_source(now.path, now.replaced(made))
    except ValueError:
        return None
    return made


def changed_symbol(path: Path, source: str, wrong: str) -> tuple[Symbol, str]:
    """The smallest symbol that holds all that differs in a source's other version, and its code there."""
    before = {symbol.name: symbol for symbol in symbols_of(path, source)}
    try:
        after = {symbol.name: symbol for symbol in symbols_of(path, wrong)}
    except ValueError as error:
        raise ValueError(f"its replacement cannot be parsed: {error}") from None
    for symbol in sorted(before.values(), key=lambda symbol: symbol.end - symbol.start):
        other = after.get(symbol.name)
        if other is None or other.text == symbol.text or other.code == symbol.code:
            continue
        if wrong.startswith(source[: symbol.start]) and wrong.endswith(source[symbol.end :]):
            return symbol, other.code
    raise ValueError(f"it changes more than one symbol of {path}")


def like(left: Symbol, right: Symbol, least: float) -> float:
    """How much two definitions have in common, up to 1; 0 if it is less than `least`."""
    matcher = difflib.SequenceMatcher(
        None, texts(left.code, left.is_python), texts(right.code, right.is_python), autojunk=False
    )
    if matcher.real_quick_ratio() < least or matcher.quick_ratio() < least:
        return 0.0
    return matcher.ratio()


def merge(base: str, ours: str, theirs: str, pattern: re.Pattern[str]) -> str | None:
    """Both changes of a base, by git; None if they conflict.

    Args:
        base, ours, theirs: three versions.
        pattern: cuts them into the pieces that are compared.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for name, text in (("ours", ours), ("base", base), ("theirs", theirs)):
            files.append(Path(folder) / name)
            pieces = pattern.findall(text)
            files[-1].write_text("".join(f"{piece!r}\n" for piece in pieces), encoding="utf-8")
        result = subprocess.run(["git", "merge-file", "-p", *files], capture_output=True, text=True)
    if result.returncode:
        return None
    return "".join(ast.literal_eval(line) for line in result.stdout.splitlines())


def last(name: str) -> str:
    """A name without what is before its last dot."""
    return name.rpartition(".")[2]


def words(code: str, symbol: Symbol) -> set[str]:
    """The words of a symbol's code."""
    return {token.text for token in tokens(code, symbol.is_python) if token.text.isidentifier()}


def replace_words(code: str, names: Mapping[str, str]) -> str:
    """Code with other words."""
    return re.sub(r"\w+", lambda match: names.get(match[0], match[0]), code)
