"""What the preprocessor makes of words, formulas and fences, and what it refuses, with the line."""

import re
from pathlib import Path

import pytest

from tests.book.small_books import faults_of, folders_in, keep_records, page_of, record_of

SVG = '<svg viewBox="0 0 1 1">\n<title>A drawing</title>\n</svg>\n'


def test_a_task_has_its_heading_files_signatures_and_command(tmp_path: Path) -> None:
    text = page_of(tmp_path, "{{#task 2}}").rendered
    assert "## Task 2: One chunk per call" in text
    assert "Write in `tiny_llm/batching/request.py`:" in text
    assert "```python\nclass Request(Answer):\n    def try_prefill(self) -> int: ...\n```" in text
    assert '<span class="unbroken">--task</span> 2</code>' in text
    assert "pdm run test --week 2 --day 7 --task 2" in re.sub("<[^>]+>", "", text)


@pytest.mark.parametrize(
    ("task", "page", "note"),
    [
        (1, "week-2/day-3.md", None),
        (4, "week-1/day-2.md", "Optional. No core task needs it."),
        (
            5,
            "week-2/day-3.md",
            "Core if CUDA is the GPU you chose (pdm run progress --gpu cuda), optional if not.",
        ),
    ],
)
def test_a_task_says_whether_it_is_optional(task: int, page: str, note: str | None, tmp_path: Path) -> None:
    text = page_of(tmp_path, f"{{{{#task {task}}}}}", page).rendered
    notes = re.findall('<p class="optional">(.*)</p>', text)
    assert [re.sub("<[^>]+>", "", found) for found in notes] == [note] * bool(note)


def test_a_task_names_no_helper_of_the_solution(tmp_path: Path) -> None:
    text = page_of(tmp_path, "{{#task 2}}", "week-1/day-2.md").rendered
    assert "def __call__(" in text
    assert "_rotate" not in text


def test_a_task_in_another_language_shows_its_function_without_the_body(tmp_path: Path) -> None:
    text = page_of(tmp_path, "{{#task 4}}", "week-2/day-3.md").rendered
    assert "tiny_llm/kernels/metal/quantized_matvec.metal" in text
    assert "```cpp\n" in text
    assert "{" not in text.split("```cpp\n")[1].split("```")[0]


def test_the_starter_is_shown_without_the_line_of_its_hole(tmp_path: Path) -> None:
    text = page_of(tmp_path, "{{#starter batching.request.Request.try_prefill}}").rendered
    assert "<code>tiny_llm/batching/request.py</code>" in text
    assert "def try_prefill(self) -> int:" in text
    assert "NotImplementedError" not in text
    assert "logits_to_keep=" not in text


def test_the_reference_and_a_test_are_shown_whole(tmp_path: Path) -> None:
    # attention.py imports softmax from the module beside it, which is where it is shown from
    page = page_of(
        tmp_path,
        "{{#ref ops.attention.softmax}}\n\n{{#ref kernels.cpu.rms_norm.rms_norm}}\n\n"
        "{{#test week_1_day_1.test_task_1_softmax_along_every_axis}}",
    )
    assert page.found == []
    softmax, kernel, test = [*page.rendered.split("```\n\n")[:2], page.rendered.split("<code>tests/")[1]]
    assert "def softmax(x: mx.array" in softmax
    assert "return " in softmax
    assert "```cpp" in kernel
    assert "def test_task_1_softmax_along_every_axis(" in test
    assert page.counts["symbols"] == 3


@pytest.mark.parametrize(
    ("word", "path", "sentence"),
    [
        ("{{#nothing 2}}", "week-2/day-7.md", "{{#nothing}} is no word"),
        ("{{#include x.md}}", "week-2/day-7.md", "{{#include}} is no word"),
        ("{{#task 9}}", "week-2/day-7.md", "week 2 day 7 has tasks 1 to 7, not 9"),
        ("{{#task two}}", "week-2/day-7.md", "takes a number, not 'two'"),
        ("{{#task 1}}", "setup.md", "only the page of a day has tasks"),
        ("{{#ref ops.basics.sofmax}}", "week-2/day-7.md", "ops/basics.py of the package has no sofmax"),
        ("{{#ref nowhere.softmax}}", "week-2/day-7.md", "the package has no nowhere.softmax"),
        ("{{#ref batching.request.Request.try_prefill}}", "week-2/day-7.md", "week 2 day 7 task 2 asks for"),
        (
            "{{#ref batching.batch_generator.BatchGenerator}}",
            "week-2/day-6.md",
            "asks for: show {{#starter}} of it",
        ),
        ("{{#ref kernels.cpu.rms_norm.rms_norm}}", "week-1/day-4.md", "week 2 day 5 task 4 asks for"),
        ("{{#ref ops.positional_encoding.RoPE._rotate}}", "week-1/day-2.md", "week 1 day 2 task 2 asks for"),
        (
            "{{#ref exercises.chunked_prefill._take_chunk}}",
            "week-2/day-7.md",
            "only the solution of this day",
        ),
        ("{{#starter ops.positional_encoding.RoPE._rotate}}", "week-1/day-2.md", "the starter has no"),
        ("{{#test week_9_day_1.test_x}}", "week-2/day-7.md", "there is no tests/days/test_week_9_day_1.py"),
        ("{{#test week_1_day_1.test_x}}", "week-2/day-7.md", "tests/days/test_week_1_day_1.py has no test_x"),
        ("{{#figure nowhere | See.}}", "week-2/day-7.md", "there is no figure nowhere"),
        ("{{#figure some-thing}}", "week-2/day-7.md", "needs a sentence after a bar"),
        ("{{#figure Some | See.}}", "week-2/day-7.md", "needs a name of small letters"),
        ("{{#figure some wide | See.}}", "week-2/day-7.md", "'wide' is no attribute"),
        ("Text {{#task 1}}", "week-2/day-7.md", "must stand on a line of its own"),
        ("{{#task 1", "week-2/day-7.md", "{{# is never closed"),
        ("<!-- open", "week-2/day-7.md", "<!-- is never closed"),
        ("It costs $5 a day.", "week-2/day-7.md", "a dollar sign without its partner"),
        ("$\\frac{1$", "week-2/day-7.md", "bad TeX: "),
        ("$$\\nosuchmacro$$", "week-2/day-7.md", "bad TeX: Undefined control sequence: \\nosuchmacro"),
    ],
)
def test_a_wrong_word_is_refused_with_its_line(tmp_path: Path, word: str, path: str, sentence: str) -> None:
    ((line, text),) = faults_of(tmp_path, f"# Title\n\nText.\n\n{word}\n", path)
    assert line == 5
    assert sentence in text


def test_formulas_become_html_that_markdown_leaves_alone(tmp_path: Path) -> None:
    page = page_of(tmp_path, "For $a_i * |b|$ and\n\n$$\\sqrt{x_i}$$\n\nit costs \\$5, `$x$` is code.")
    assert page.found == []
    assert page.rendered.count('<span class="katex">') == 2
    assert '<span class="katex-display">' in page.rendered
    html = page.rendered.split("For ")[1].split(" and\n")[0]
    assert not set("*_|\n") & set(html)
    assert "\\$5, `$x$`" in page.rendered


def test_words_within_code_and_comments_are_left_alone(tmp_path: Path) -> None:
    page = page_of(tmp_path, "Write `{{#task 2}}`.<!-- {{#task 9}} $ -->\n\n```text\n{{#task 9}} $\n```\n")
    assert page.found == []
    assert "<!--" not in page.rendered
    assert "```text\n{{#task 9}} $\n```" in page.rendered


def test_a_still_figure_is_inlined_with_its_sentence(tmp_path: Path) -> None:
    drawings = folders_in(tmp_path).book / "figures"
    drawings.mkdir()
    (drawings / "some-thing.svg").write_text(SVG)
    (drawings / "made.py").write_text(
        "import json, sys\n"
        "wide = json.load(sys.stdin)['wide']\n"
        "print(f'<svg><title>{wide} wide</title></svg>')\n"
    )
    (drawings / "silent.svg").write_text("<svg></svg>")
    page = page_of(
        tmp_path,
        "{{#figure some-thing | See $x$\n in `it`.}}\n\n{{#figure made wide=7 | See.}}\n\n"
        "{{#figure silent | See.}}",
    )
    assert "<title>A drawing</title> </svg>" in page.rendered
    assert "<figcaption>\n\nSee <span" in page.rendered
    assert "<title>7 wide</title>" in page.rendered
    assert [problem.text for problem in page.found] == [
        "the figure silent has no <title>: say in it what is drawn"
    ]


def test_a_figure_to_play_with_holds_its_still_and_loads_its_scripts(tmp_path: Path) -> None:
    viz = folders_in(tmp_path).book / "viz"
    for name in ("common.js", "twins/a.js", "data/my-thing.js", "data/other.js", "my-thing.js", "viz.css"):
        (viz / name).parent.mkdir(parents=True, exist_ok=True)
        (viz / name).write_text("")
    (viz / "still.py").write_text("print('<svg><title>Still</title></svg>')")
    text = page_of(tmp_path, '{{#figure my-thing rows="1 2" | See.}}').rendered
    assert '<my-thing rows="1 2"><svg><title>Still</title></svg></my-thing>' in text
    order = ["../viz/common.js", "../viz/twins/a.js", "../viz/data/my-thing.js", "../viz/my-thing.js"]
    positions = [text.index(f'<script src="{name}"></script>') for name in order]
    assert positions == sorted(positions)
    assert 'href="../viz/viz.css"' in text
    assert "other.js" not in text


def test_commands_show_their_records(tmp_path: Path) -> None:
    lines = "\n".join(f"line {i} <b>" for i in range(10))
    keep_records(folders_in(tmp_path), record_of("pdm run doctor", lines))
    text = page_of(tmp_path, "```console,head=2,tail=1\n$ pdm run doctor\n```").rendered
    assert '<code class="language-console nohighlight">pdm run doctor</code>' in text
    assert "line 0 &lt;b&gt;&#10;line 1 &lt;b&gt;&#10;… 7 more lines&#10;line 9 &lt;b&gt;</samp>" in text
    assert "A machine, 2 cores; Linux, Python 3.11, MLX 1; 2026-11-21" in text


def test_a_bare_command_needs_no_record(tmp_path: Path) -> None:
    page = page_of(tmp_path, "```console,bare\n$ git pull && pdm run doctor\n$ pdm run demo --mine\n```")
    assert page.found == []
    assert page.rendered.count('<pre class="command">') == 2


def test_what_a_prediction_is_about_comes_on_a_click(tmp_path: Path) -> None:
    keep_records(folders_in(tmp_path), record_of("pdm run doctor", "seven"))
    page = page_of(tmp_path, "```predict\nHow many $n$ in `softmax()`?\n---\npdm run doctor\n```")
    assert page.found == []
    before, after = page.rendered.split("<details>")
    assert "How many <span" in before
    assert "seven" not in before
    assert "seven</samp>" in after


def test_what_a_prediction_is_about_can_be_shortened(tmp_path: Path) -> None:
    keep_records(folders_in(tmp_path), record_of("pdm run doctor", "\n".join("abcdefg")))
    page = page_of(tmp_path, "```predict,head=1,tail=2\nHow many?\n---\npdm run doctor\n```")
    assert page.found == []
    assert "<samp>a&#10;… 4 more lines&#10;f&#10;g</samp>" in page.rendered


def test_answers_are_computed_by_the_reference(tmp_path: Path) -> None:
    page = page_of(
        tmp_path,
        "```python\nfrom tiny_llm import num_prefill_steps\n\nprint(num_prefill_steps(7, 3, 3))\n```\n\n"
        '```check-yourself\nHow many?\n---\nprint(f"**{num_prefill_steps(10, 3, 3)}** of $n$")\n```',
    )
    assert page.found == []
    assert '<pre class="output"><samp>3</samp></pre>' in page.rendered
    assert "**4** of <span" in page.rendered
    assert page.counts["fences run"] == 2


@pytest.mark.parametrize("info", ["python,folded", "python,varies,folded"])
def test_folded_code_stands_below_its_output_and_is_run(tmp_path: Path, info: str) -> None:
    page = page_of(tmp_path, f"Text.\n\n```{info}\nn = 3\nprint(n)\n```\n\n```python\nprint(n + 4)\n```")
    assert page.found == []
    before, code = page.rendered.split('<details class="folded"><summary>The code</summary>')
    assert before.strip() == 'Text.\n\n<pre class="output"><samp>3</samp></pre>'
    assert code.startswith("\n\n```python\nn = 3\nprint(n)\n```\n\n</details>")
    assert "<samp>7</samp>" in code


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        ("a name:   and a sentence that may be broken", "output"),
        ("chunk    TTFT  gap\n    8  911 ms    1", "output columns"),
        ("│██  │", "output columns"),
    ],
)
def test_only_columns_are_never_broken(tmp_path: Path, output: str, kind: str) -> None:
    keep_records(folders_in(tmp_path), record_of("pdm run doctor", output))
    text = page_of(tmp_path, "```console\n$ pdm run doctor\n```").rendered
    assert f'<pre class="{kind}">' in text


def test_code_that_is_shown_is_not_run(tmp_path: Path) -> None:
    assert faults_of(tmp_path, "```python,shown\nraise ValueError\n```") == []


@pytest.mark.parametrize(
    ("fence", "line", "sentence"),
    [
        ("```ruby\nx\n```", 3, "a fence cannot be of kind 'ruby'"),
        ("```\nx\n```", 3, "a fence cannot be of kind ''"),
        ("```text\nx", 3, "this fence has no end"),
        ("```python\nx = 1\nx = (\n```", 4, "this is not Python"),
        ("```python\nx=1\n```", 4, "ruff would write this otherwise"),
        ("```python\nx = 1\nassert x == 2\n```", 5, "this code fails: AssertionError"),
        ("```python,folded\nx = 1\nassert x == 2\n```", 5, "this code fails: AssertionError"),
        ("```python,hidden\nx = 1\n```", 3, "a python fence has no option 'hidden'"),
        ("```python, shown\nx = 1\n```", 3, "is not a kind of fence"),
        ("```console\npdm run doctor\n```", 4, "each after `$ `"),
        ("```console\n```", 3, "needs a line that starts with `$ `"),
        ("```console\n$ ls\n```", 4, "mark the fence `console,bare`"),
        ("```console\n$ pdm run nothing\n```", 4, "there is no command `pdm run nothing`"),
        ("```console\n$ pdm run demo --nothing\n```", 4, "No such option: --nothing"),
        ("```console,bare\n$ pip install pdm && pdm run demo --x\n```", 4, "No such option: --x"),
        ("```console,head=x\n$ pdm run doctor\n```", 3, "head=x must be a number"),
        ("```console\n$ pdm run demo\n```", 4, "`pdm run demo` has no record: run `pdm run book record"),
        ("```console\n$ pdm run author messages\n```", 4, "was recorded with exit code 1, not 0"),
        ("```console,fails\n$ pdm run doctor\n```", 4, "exit code 0, not another code than 0"),
        ("```predict\nHow many?\n```", 3, "needs a line ---"),
        ("```predict\nHow many?\n---\n```", 3, "needs a question above --- and what answers it below"),
        ("```predict\nHow many?\n---\npdm run doctor\npdm run demo\n```", 6, "answered by one command line"),
        ("```check-yourself\nHow many?\n---\nassert 1 == 2\n```", 6, "this code fails: AssertionError"),
        ("```check-yourself\nHow many?\n---\nprint(\n```", 6, "this is not Python"),
        ("```predict\nIs `softmx()`\nhere?\n---\npdm run doctor\n```", 4, "the packages have no `softmx`"),
    ],
)
def test_a_wrong_fence_is_refused_with_its_line(tmp_path: Path, fence: str, line: int, sentence: str) -> None:
    records = [record_of("pdm run doctor", "x"), record_of("pdm run author messages", "x", 1)]
    keep_records(folders_in(tmp_path), *records)
    faults = faults_of(tmp_path, f"# Title\n\n{fence}\n")
    assert [at for at, _ in faults] == [line], faults
    assert sentence in faults[0][1]


def test_all_faults_of_a_page_are_listed(tmp_path: Path) -> None:
    faults = faults_of(tmp_path, "`softmx()`\n\n{{#task 9}}\n\n```ruby\n```\n\n$\\x{$\n")
    assert [line for line, _ in faults] == [1, 3, 5, 8]
