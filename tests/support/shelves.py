"""A small package that wrong solutions are made of in tests."""

from pathlib import Path

from scripts.sources.symbols import Package

SOURCE = '''
LIMIT = 3


class Shelf:
    """Holds books."""

    def put(self, book: str, count: int = 1) -> int:
        """Put a book in, `count` times."""
        # One by one.
        for place in range(count):
            self.books.append((book, place))
        return len(self.books) % (LIMIT - 1)


def first(books: list[str]) -> str:
    return books[0]
'''
FILE = Path("store/shelf.py")
KERNEL = """float dot(const float* x, int n) {
  float sum = 0;  // so far
  for (int i = 0; i < n; ++i) sum += x[i];
  return sum;
}
"""


def package_of(source: str, file: Path = FILE) -> Package:
    return Package({file: source})
