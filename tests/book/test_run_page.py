"""A page's Python in the terminal: each block with its output, and on after one that fails."""

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.book import run_fences
from scripts.book.run_page import run_page
from scripts.course import ROOT
from tests.book.small_books import DAY, book_in

pytestmark = pytest.mark.sampled(3, "book/viz/", "scripts/run/")
PAGE = """# Day

```python
three = 3
print(2 * three)
```

```python
raise NotImplementedError("week 1 day 1 task 1: softmax is not written yet")
x = 1
```

```python,shown
print("not run")
```

```python
print(three**2)
```

```python
print(x)
```
"""


def test_blocks_run_in_one_namespace_and_on_after_one_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_fences, "start", lambda mine: {})
    folders = book_in(tmp_path, {DAY: PAGE})
    with pytest.raises(ValueError, match="2 of 4 blocks stopped"):
        run_page(folders, "week-2/day-7", mine=True)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines.count("6") == lines.count("9") == 1
    assert "stops at line 9: week 1 day 1 task 1: softmax is not written yet" in lines
    assert "stops at line 22: x is missing, since the block of line 9 stopped" in lines
    assert not any("not run" in line for line in lines)
    with pytest.raises(ValueError, match="no page week-2/day-8"):
        run_page(folders, "week-2/day-8", mine=True)


@pytest.mark.parametrize("options", [[], ["--mine"]], ids=["reference", "mine"])
def test_the_package_is_the_one_asked_for(options: list[str]) -> None:
    command = [sys.executable, "-m", "scripts.book", "run", "week-1/day-4", *options]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8", timeout=120)
    assert (result.returncode == 0) == (not options), result.stderr
    assert ("is not written yet" in result.stdout) == bool(options)
