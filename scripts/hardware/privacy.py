"""Take out of a text whatever tells whose machine it is from: user names, host names, paths."""

import getpass
import os
import platform
import re
import socket
import sys
import tempfile
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

from scripts.course import ROOT
from scripts.machine import answer_of

REST = r"[^\s'\":;,()<>|]*"  # of a path, up to what may follow one in a sentence
PATHS = re.compile(
    rf"""
    (?<![\w'">]) (?P<quote>['"]) [/~] [^'"\n]*/[^'"\n]* (?P=quote)   # quoted, so with spaces too
  | \bfile:/{REST}
  | (?<![\w~]) ~\w*/{REST}
  | (?<![\w.~>/-]) /[\w.@+%-]+ (?:/[\w.@+%-]+)+ /?
    """,
    re.X,
)
INSIDE = re.compile(
    rf"""(?P<quote>['"]) (?P<quoted><home>|<temp>) /[^'"\n]* (?P=quote) | (?P<bare><home>|<temp>) /{REST}""",
    re.X,
)
SHORTEST_NAME = 2


def without_paths(text: str) -> str:
    """The text with `<path>` for every path that starts at the root or at a home folder."""

    def replacement(match: re.Match[str]) -> str:
        quotation_mark = match["quote"] or ""
        return f"{quotation_mark}<path>{quotation_mark}"

    return PATHS.sub(replacement, text)


@dataclass(frozen=True)
class Identity:
    """What gives a machine and its user away.

    Args:
        users: names of the user, full name included.
        hosts: names of the machine.
        folders: folder and what stands in its place.
    """

    users: frozenset[str]
    hosts: frozenset[str]
    folders: tuple[tuple[str, str], ...]

    @classmethod
    def of_this_machine(cls) -> "Identity":
        """Of the user who runs this process."""
        folders = [(str(ROOT), "."), (tempfile.gettempdir(), "<temp>"), (str(Path.home()), "<home>")]
        folders += [(folder, "<python>") for folder in (sys.prefix, sys.base_prefix)]
        return cls(frozenset(user_names()), frozenset(host_names()), tuple(folders))

    def scrub(self, text: str) -> str:
        """The text without names and paths; paths within the repository start at its folder."""
        for form, replacement in self._forms:
            folder = rf"(?:file://)?{re.escape(form)}"
            if replacement == ".":
                text = re.sub(f"{folder}/", "", text)
            text = re.sub(rf"{folder}(?![\w-])", replacement, text)
        text = without_paths(INSIDE.sub(folder_alone, text))
        for names, replacement in ((self.hosts, "<host>"), (self.users, "<user>")):
            for name in sorted(names, key=len, reverse=True):
                pattern = rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])"
                text = re.sub(pattern, replacement, text, flags=re.I)
        return text

    @cached_property
    def _forms(self) -> list[tuple[str, str]]:
        """Each folder in every form in which a program may print it, the longest first."""
        forms = {
            form: replacement
            for folder, replacement in reversed(self.folders)
            for form in forms_of(folder)
            if len(form) > 1
        }
        return sorted(forms.items(), key=lambda each: len(each[0]), reverse=True)


def folder_alone(match: re.Match[str]) -> str:
    """`<home>` or `<temp>` in the place of a path within it."""
    quotation_mark = match["quote"] or ""
    return f"{quotation_mark}{match['quoted'] or match['bare']}{quotation_mark}"


def forms_of(folder: str) -> Iterator[str]:
    """A folder as it is, with its links followed, as part of a URL, and with escapes."""
    for path in (folder, os.path.realpath(folder)):
        yield path
        yield quote(path)
        yield ascii(path)[1:-1]
        for form in ("NFC", "NFD"):
            yield unicodedata.normalize(form, path)


def user_names() -> set[str]:
    """Every name of the user that the system and the environment know."""
    names = {os.environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME", "SUDO_USER")}
    names.add(Path.home().name)
    try:
        import pwd

        entry = pwd.getpwuid(os.getuid())
        names |= {getpass.getuser(), entry.pw_name, entry.pw_gecos.partition(",")[0]}
    except (KeyError, OSError):  # a user without an entry, as in some containers
        pass
    return long_enough(names)


def host_names() -> set[str]:
    """Every name of the machine; a Mac has three."""
    names = {socket.gethostname(), platform.node()}
    if sys.platform == "darwin":
        for key in ("ComputerName", "LocalHostName"):
            names.add(answer_of("scutil", "--get", key))
    return long_enough(names | {name.partition(".")[0] for name in names})


def long_enough(names: set[str]) -> set[str]:
    """Names that tell something; one letter would hit half of any text."""
    return {name for name in names if len(name) >= SHORTEST_NAME}
