"""Where the parts of the book are."""

from dataclasses import dataclass
from pathlib import Path

from scripts.course import ROOT


@dataclass(frozen=True)
class Folders:
    """The book's folder, which tests make elsewhere."""

    book: Path = ROOT / "book"

    @property
    def src(self) -> Path:
        """The chapters."""
        return self.book / "src"

    @property
    def records(self) -> Path:
        """The output of the commands that the chapters show."""
        return self.book / "records"

    @property
    def outputs(self) -> Path:
        """What the fences of the chapters print and the scripts of figures draw."""
        return self.book / "outputs"

    @property
    def charts(self) -> Path:
        """Charts of records, for the README."""
        return self.book / "charts"

    @property
    def cache(self) -> Path:
        """What fences and scripts of figures printed on this machine, so that none runs twice."""
        return self.book / ".cache"

    @property
    def build(self) -> Path:
        """The pages."""
        return self.book / "build"

    def name(self, file: Path) -> str:
        """A file as messages name it: from the repository's folder."""
        return file.relative_to(self.book.parent).as_posix()
