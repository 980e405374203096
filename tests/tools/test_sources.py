"""Sources in chunks, and holes in C++, Metal and CUDA sources: made, filled, and made again."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.course import ROOT, Course, Day, Task
from scripts.learn import learner
from scripts.learn.catch_up import catch_up, mixed_classes
from scripts.learn.learner import functions_of_tasks, read_package, tasks_with_holes
from scripts.learn.reset import reset
from scripts.sources import files
from scripts.sources.chunks import join
from scripts.sources.files import SUFFIXES, Sources, write
from scripts.sources.fill import is_imported
from scripts.sources.imports import with_aliases
from scripts.sources.rename import renamed
from scripts.sources.render import render, render_source, starter_of
from scripts.sources.symbols import definition_of, holes_of, split

KERNEL = r"""// Sums of rows, { as ( an [ example.

#include <cmath>

#include "kernel.h"

// How far to unroll.
#define UNROLL(x) \
  { x; }

/* Sizes: { */
constexpr int BLOCK = 64;  // entries }
constexpr int WIDE = 2 * BLOCK, NARROW = 1'000;
static const char* NAME = "a } brace \" and // no comment";

using Row = const float*;

struct Sum {
  float total = 0;  // don't close: }
};

template <typename T, int N = (1 > 0)>
static T square(T x) {
  return x * x;
}

static float helper(Row row, long size) {
  // a brace: }
  const char* text = R"x(unbalanced } and ")" )x";
  char one = '}';
  UNROLL(one = '"')
  return square<float>(row[0]) + text[0] + one + WIDE;
}

/// Adds a row up.
float add_up(Row row, long size) {
  Sum sum;
  for (long i = 0; i < BLOCK; i++) sum.total += row[i];
  return sum.total + helper(row, size);
}

/// Adds two up.
float add_up(Row row, Row other) {
  return helper(row, NARROW) + helper(other, 1);
}

/// The largest entry,
/// of a row.
KERNEL largest(const Array* inputs,
               const Array* outputs) { outputs[0] = std::sqrt(BLOCK); }
"""
SENTENCE = "week 2 day 3 task {}: {} is not written yet"


def rendered(source: str, *names: str, owned: tuple[str, ...] = (), suffix: str = ".cpp") -> str:
    """The source with a hole for each name; others are asked for by a task that is solved."""
    tasks = (names, owned)
    symbols = [tuple(f"kernels.{name}" for name in each) for each in tasks]
    course = Course((Day(2, 3, "", tuple(Task(f"2.3.{n}", n, "", symbols[n - 1]) for n in (1, 2))),))
    return render_source(Path("kernels").with_suffix(suffix), source, course, {"2.3.2"})


def flat(source: str) -> str:
    return re.sub(r"NOT_WRITTEN_YET\(.*\);", "HOLE;", source)


EVERY_SOURCE = [
    path
    for folder in ("tiny_llm_ref", "accelerated", "kernel_runtime", "scripts", "tests")
    for path in (ROOT / folder).rglob("*")
]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_chunks_are_the_source_again(suffix: str, line_end: str) -> None:
    paths = [path for path in EVERY_SOURCE if path.suffix == suffix]
    for path in paths[:: 4 if suffix == ".py" else 1]:
        source = path.read_text(encoding="utf-8").replace("\n", line_end)
        assert join(split(path, source)) == source, path
        assert join(split(path, source.rstrip())) == source.rstrip(), path


@pytest.mark.parametrize(
    "block",
    [
        "def f():\n    pass\n",
        "@one\n@two(3)\nasync def f(\n    x=1,\n) -> None:  # why\n    # first\n    return x; g()\n",
        "class C:\n    def m(self):\n        pass\n",
        "if x:\n    pass\nelif y:\n    pass\n",
        "try:\n    pass\nexcept E:\n    pass\n",
        "match x:\n    case 1:\n        pass\n",
    ],
)
def test_a_comment_below_belongs_to_the_block_that_it_is_indented_as(block: str) -> None:
    source = f"x = 1; y = 2\n{block}\n    # of the block\n\n# of the end\nend = 1\n"
    first, *others, last = split(Path("a.py"), source)
    assert (first.names, last.names) == (("x", "y"), ("end",))
    assert last.text == "# of the end\nend = 1\n"
    assert join(others) == f"{block}\n    # of the block\n"
    assert join([first, *others, last]) == source


def test_an_empty_module_has_no_chunks_and_a_broken_one_is_refused() -> None:
    assert split(Path("a.py"), "") == ()
    assert [chunk.kind for chunk in split(Path("a.py"), "# nothing\n")] == ["comment"]
    with pytest.raises(ValueError, match="line 2: this is not Python"):
        split(Path("a.py"), "x = 1\ndef f(:\n")
    with pytest.raises(ValueError, match="this is not Python"):
        split(Path("a.py"), "x = 1\ny = '\0'\n")


def test_a_hole_keeps_signature_and_documentation() -> None:
    assert (
        rendered(KERNEL, "largest").partition("/// The largest")[2]
        == f""" entry,
/// of a row.
KERNEL largest(const Array* inputs,
               const Array* outputs) {{
  NOT_WRITTEN_YET("{SENTENCE.format(1, "largest")}");
}}
"""
    )
    assert rendered(KERNEL, "largest").partition("/// The")[0] == KERNEL.partition("/// The")[0]


def test_overloads_are_holes_together_and_what_only_they_used_goes() -> None:
    assert (
        flat(rendered(KERNEL, "add_up"))
        == """// Sums of rows, { as ( an [ example.

#include <cmath>

#include "kernel.h"

/* Sizes: { */
constexpr int BLOCK = 64;  // entries }
static const char* NAME = "a } brace \\" and // no comment";

using Row = const float*;

/// Adds a row up.
float add_up(Row row, long size) {
  HOLE;
}

/// Adds two up.
float add_up(Row row, Row other) {
  HOLE;
}

/// The largest entry,
/// of a row.
KERNEL largest(const Array* inputs,
               const Array* outputs) { outputs[0] = std::sqrt(BLOCK); }
"""
    )


def test_without_a_hole_nothing_changes() -> None:
    assert rendered(KERNEL) == KERNEL


def test_what_two_functions_use_stays_for_the_second() -> None:
    source = "static int h() { return 1; }\n\nint f() {\n  return h();\n}\n\nint g() {\n  return h();\n}\n"
    assert "h() { return 1; }" in rendered(source, "f")
    assert flat(rendered(source, "f", "g")) == "int f() {\n  HOLE;\n}\n\nint g() {\n  HOLE;\n}\n"


def test_a_chain_and_a_circle_of_helpers_go() -> None:
    source = (
        "static int a(int x);\n\nstatic int b(int x) { return a(x); }\n\n"
        "static int a(int x) { return x ? b(x - 1) : 0; }\n\nint f() { return a(3); }\n"
    )
    assert flat(rendered(source, "f")) == "int f() {\n  HOLE;\n}\n"


def test_functions_of_tasks_stay_even_if_private_and_unused() -> None:
    source = "static int h() { return 1; }\n\nint f() { return h(); }\n"
    assert "static int h() { return 1; }" in rendered(source, "f", owned=("h",))
    assert flat(rendered(source, "f", "h")).startswith("static int h() {\n  HOLE;\n}\n")


def test_what_nothing_ever_used_and_what_is_public_stay() -> None:
    source = (
        "#define _USE_MATH_DEFINES\n#include <cmath>\n\nfloat shared() { return 1; }\n\n"
        "float f() { return shared(); }\n"
    )
    assert rendered(source, "f").startswith(source.partition("float f")[0])


def test_comments_of_what_goes_go_and_others_stay() -> None:
    source = (
        "// Stays.\n\n// Goes,\n// all of it.\nstatic int h() { return 1; }\n\n"
        "// Stays too.\n\nint f() { return h(); }\n"
    )
    assert flat(rendered(source, "f")) == "// Stays.\n\n// Stays too.\n\nint f() {\n  HOLE;\n}\n"


BLOCKS = """#include "kernel.h"

namespace {

int hidden() { return 1; }

}  // namespace

#if defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#ifdef __AVX2__
static int lanes() { return 8; }
#else
static int lanes() { return 4; }
#endif

extern "C" {
int other();
}

int f() {
  return hidden() + lanes();
}

int Reader::next() {
  return 1;
}
"""


def test_lines_of_the_preprocessor_stay_and_a_namespace_is_one_piece() -> None:
    after = flat(rendered(BLOCKS, "f", "Reader.next"))
    solution = (
        BLOCKS.replace("static int lanes() { return 8; }\n", "")
        .replace("static int lanes() { return 4; }\n", "")
        .replace("  return hidden() + lanes();\n", "  HOLE;\n")
        .replace("  return 1;\n}\n", "  HOLE;\n}\n")
    )
    assert after == solution


METAL = """#include <metal_stdlib>

using namespace metal;

constant constexpr int TILE = 8;
constant float BIAS = 0.5f;

struct Shape {
  int m, n;
};

template <typename T>
METAL_FUNC T load(const device T* x, constant Shape& shape) {
  return x[shape.m] + T(BIAS);
}

/// One entry a thread.
template <typename T, int group_size>
[[kernel]] void quantized_matmul(
    const device T* x [[buffer(0)]],
    device T* out [[buffer(1)]],
    constant Shape& shape [[buffer(2)]],
    uint i [[thread_position_in_grid]]) {
  threadgroup T shared[TILE];
  out[i] = load<T>(x, shape);
}

#define INSTANTIATE(type, size) \\
  template [[host_name("quantized_matmul_" #type)]] [[kernel]] void \\
  quantized_matmul<type, size>(const device type*, device type*, constant Shape&, uint);
INSTANTIATE(float, 64);
template [[host_name("half")]] [[kernel]] decltype(quantized_matmul<half, 64>) quantized_matmul<half, 64>;
"""


def test_metal() -> None:
    after = flat(rendered(METAL, "quantized_matmul"))
    assert after == (
        "#include <metal_stdlib>\n\nusing namespace metal;\n\nstruct Shape {\n  int m, n;\n};\n\n"
        + METAL[METAL.index("/// One") : METAL.index("  threadgroup")]
        + "  HOLE;\n}\n\n"
        + METAL[METAL.index("#define INST") :]
    )


CUDA = """#include <cuda_fp16.h>

enum { WARP = 32, BLOCK = 128 };

__constant__ float table[WARP];

__device__ __forceinline__ float warp_sum(float x) {
  for (int d = WARP / 2; d > 0; d /= 2) x += __shfl_xor_sync(0xffffffff, x, d);
  return x;
}

template <int N>
__global__ void __launch_bounds__(BLOCK) reduce(const float* x, float* out) {
  out[0] = warp_sum(x[threadIdx.x]) + table[0];
}

static __global__ void clear(float* out) { out[0] = 0; }

/// Launches.
void launch(const float* x, float* out) {
  clear<<<1, 1>>>(out);
  reduce<4><<<1, BLOCK>>>(x, out);
}
"""


def test_cuda() -> None:
    assert flat(rendered(CUDA, "reduce")) == (
        "#include <cuda_fp16.h>\n\nenum { WARP = 32, BLOCK = 128 };\n\ntemplate <int N>\n"
        "__global__ void __launch_bounds__(BLOCK) reduce(const float* x, float* out) {\n  HOLE;\n}\n\n"
        + CUDA[CUDA.index("static __global__") :]
    )
    both = flat(rendered(CUDA, "reduce", "launch"))
    assert "clear" not in both
    assert "template <int N>" in both


@pytest.mark.parametrize(("suffix", "is_kept"), [(".h", True), (".cuh", True), (".cu", False)])
def test_a_header_keeps_what_only_its_solutions_use(suffix: str, is_kept: bool) -> None:
    """Other files include it, and use that too."""
    constant, function = "constexpr int TILE = 32;\n\n", "__device__ int size() {{\n  {}\n}}\n"
    after = flat(rendered(constant + function.format("return TILE;"), "size", suffix=suffix))
    assert after == constant * is_kept + function.format("HOLE;")


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("auto f(int x) -> std::vector<int>", "f"),
        ("static std::function<void(int)> f(int (*g)(int))", "f"),
        ("__attribute__((noinline)) void f()", "f"),
        ("template <> void f<float>(float x) noexcept(true)", "f"),
        ("Reader::Reader(int x) : base(x), size_{x}, data_(x)", "Reader.Reader"),
        ("bool Reader::operator==(const Reader& other) const", "Reader.operator_"),
        ('extern "C" void f(float x = 1.0f)', "f"),
    ],
)
def test_headers_of_functions(header: str, name: str) -> None:
    source = f"{header} {{\n  int x[] = {{1}};\n}}\nint last;\n"
    assert flat(rendered(source, name)) == f"{header} {{\n  HOLE;\n}}\nint last;\n"


@pytest.mark.parametrize(
    ("code", "used", "goes"),
    [
        ("constexpr auto g = [](int x) { return x; };", "g(1)", True),
        ("static const int table[2][2] = {{1, 2}, {3, 4}};", "table[0]", True),
        ("static std::vector<float> rows{1, 2};", "rows", True),
        ("std::vector<float> rows{1, 2};", "rows", False),
        ("enum class Mode : int { FAST, SLOW };", "Mode::FAST", True),
        ("enum { FAST, SLOW };", "SLOW", True),
        ("struct alignas(16) Tile final : Base<int> {};", "Tile()", True),
        ("typedef float Floats __attribute__((vector_size(16)));", "Floats()", True),
        ("using Row = const float*;", "Row()", True),
        ("static_assert(sizeof(int) == 4);", "sizeof(int)", False),
        ("template void g<float>(float x);", "g", False),
        ("#undef UNROLL", "UNROLL", True),
        ("static int g(int x);", "g(1)", True),
        ("int g(int x);", "g(1)", False),
    ],
)
def test_private_declarations_go_with_their_use(code: str, used: str, goes: bool) -> None:
    source = f"{code}\n\nint f() {{\n  return {used};\n}}\n"
    assert flat(rendered(source, "f")) == ("" if goes else f"{code}\n\n") + "int f() {\n  HOLE;\n}\n"
    assert rendered(source, owned=("f",)) == source


def test_line_ends_of_windows() -> None:
    source = KERNEL.replace("\n", "\r\n")
    assert rendered(source, "add_up") == rendered(KERNEL, "add_up").replace("\n", "\r\n")


def test_holes_are_found_in_what_is_broken_but_not_in_comments() -> None:
    hole = f'NOT_WRITTEN_YET("{SENTENCE.format(1, "f")}");'
    assert holes_of(ROWS, f"int f() {{ {hole} }} }}") == {"f": SENTENCE.format(1, "f")}
    assert holes_of(ROWS, f"// {hole}\n#define NOT_WRITTEN_YET(sentence) 1\n") == {}


# In a package

COURSE = Course(
    (
        Day(2, 3, "Kernels", (Task("2.3.1", 1, "", ("kernels.cpu.rows.add_up", "kernels.dispatch.best")),)),
        Day(2, 5, "More", (Task("2.5.1", 1, "", ("kernels.cpu.rows.largest", "kernels.metal.m.run")),)),
    )
)
ALL_TASKS = {"2.3.1", "2.5.1"}
ROWS, SHADER, DISPATCH = (
    Path("kernels", *parts) for parts in (("cpu", "rows.cpp"), ("metal", "m.metal"), ("dispatch.py",))
)
REFERENCE = {
    Path("__init__.py"): '"""A package."""\n\nload = None\n',
    Path("basics.py"): '"""Below."""\n\nSIZE = 3\n\n\ndef plain() -> int:\n    """One."""\n    return 1\n',
    Path("kernels/__init__.py"): '"""Kernels."""\n',
    Path("kernels/kernel.h"): "#pragma once\n#define KERNEL void\n",
    ROWS: KERNEL,
    SHADER: METAL.replace("quantized_matmul", "run"),
    DISPATCH: (
        '"""The kernel for this machine."""\n\nfrom ..basics import SIZE\nfrom .choice import _first\n\n\n'
        'def best() -> int:\n    """The best."""\n    return SIZE + _first()\n'
    ),
    Path("kernels/choice.py"): (
        '"""A choice."""\n\n\ndef _first() -> int:\n    """The first."""\n    return 1\n'
    ),
}


@pytest.fixture
def starter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sources]:
    """The made-up package with nothing solved, whose reference is the reference for now."""
    write(REFERENCE, tmp_path / "reference")
    monkeypatch.setattr(files, "REFERENCE", tmp_path / "reference")
    starter_of.cache_clear()
    yield render((), COURSE)
    starter_of.cache_clear()


def test_the_starter_has_every_file_and_a_hole_for_every_symbol(starter: Sources) -> None:
    assert starter.keys() == REFERENCE.keys()
    found = [(path, name) for path, source in starter.items() for name in holes_of(path, source)]
    assert found == [(ROWS, "add_up"), (ROWS, "largest"), (DISPATCH, "best"), (SHADER, "run")]
    assert found == functions_of_tasks(starter, COURSE, ALL_TASKS)
    assert tasks_with_holes(starter) == ALL_TASKS
    assert "import" not in starter[DISPATCH]
    assert all(starter[path] == REFERENCE[path] for path in REFERENCE if path.suffix == ".h")


def test_a_symbol_that_is_not_there_is_an_error(starter: Sources) -> None:
    course = Course((Day(2, 3, "", (Task("2.3.1", 1, "", ("kernels.cpu.rows.no_such",)),)),))
    with pytest.raises(KeyError, match="no_such"):
        render((), course)


def test_catch_up_and_reset_are_the_way_there_and_back(starter: Sources) -> None:
    assert catch_up(starter, COURSE, ALL_TASKS) == REFERENCE
    assert reset(REFERENCE, COURSE, ALL_TASKS) == starter
    for task in sorted(ALL_TASKS):
        after = catch_up(starter, COURSE, {task})
        assert after == render({task}, COURSE)
        assert mixed_classes(starter, starter, after) == []
        assert reset(after, COURSE, {task}) == starter
        assert catch_up(reset(REFERENCE, COURSE, {task}), COURSE, {task}) == REFERENCE


def test_helpers_of_one_task_go_between_those_of_another(starter: Sources) -> None:
    source = (
        "constexpr int A = 1;\nconstexpr int B = 2;\nconstexpr int C = 3;\n\n"
        "float largest() { return A + C; }\n\nfloat add_up() { return B; }\n"
    )
    (files.REFERENCE / ROWS).write_text(source)
    starter_of.cache_clear()
    for task in sorted(ALL_TASKS):
        before = reset({**REFERENCE, ROWS: source}, COURSE, {task})
        assert before[ROWS].count("constexpr") == {"2.3.1": 2, "2.5.1": 1}[task]
        assert catch_up(before, COURSE, {task})[ROWS] == source


def test_branches_of_the_preprocessor_come_and_go(starter: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    course = Course((Day(2, 3, "", (Task("2.3.1", 1, "", ("kernels.cpu.rows.f",)),)),))
    (files.REFERENCE / ROWS).write_text(BLOCKS)
    begun = render((), course)
    assert "lanes" not in begun[ROWS]
    assert catch_up(begun, course, {"2.3.1"})[ROWS] == BLOCKS
    assert reset({**begun, ROWS: BLOCKS}, course, {"2.3.1"}) == begun


def test_what_the_learner_wrote_stays(starter: Sources) -> None:
    mine = "// mine: {\nstatic int my_own(){return 1;}\n\n/// The largest"
    before = {
        **starter,
        ROWS: re.sub(
            r"\n  NOT_WRITTEN_YET.*largest.*\n",
            "\n  outputs[0]=my_own( 3 );\n",
            starter[ROWS].replace("/// The largest", mine),
        ).replace("\n", "\r\n"),
    }
    after = catch_up(before, COURSE, ALL_TASKS)
    assert "outputs[0]=my_own( 3 );\r\n" in after[ROWS]
    assert "static float helper(Row row, long size) {\r\n" in after[ROWS]
    assert mine.replace("\n", "\r\n") in after[ROWS]
    assert re.search(r"[^\r]\n", after[ROWS]) is None
    again = reset(after, COURSE, {"2.3.1"})
    assert again[ROWS] == before[ROWS]
    back = reset(again, COURSE, {"2.5.1"})[ROWS].replace("\r\n", "\n")
    assert back == starter[ROWS].replace("/// The largest", mine)


def test_a_helper_of_the_learners_keeps_its_name_and_meaning(starter: Sources) -> None:
    mine = "#define UNROLL(x) x\n\nstatic float helper(Row row, int n) { UNROLL(n = 1) return n; }\n\n"
    square = KERNEL[KERNEL.index("template") : KERNEL.index("static float helper")]
    before = {**starter, ROWS: starter[ROWS].replace("/// Adds a", f"{mine}{square}/// Adds a")}
    after = catch_up(before, COURSE, {"2.3.1"})
    assert mine in after[ROWS]
    assert after[ROWS].count("square(T x)") == after[ROWS].count("struct Sum") == 1
    assert "UNROLL_REF(one = '\"')" in after[ROWS]
    assert "// How far to unroll.\n#define UNROLL_REF(x) \\\n" in after[ROWS]
    assert "static float helper_ref(Row row, long size) {" in after[ROWS]
    assert "sum.total + helper_ref(row, size)" in after[ROWS]
    assert catch_up(after, COURSE, ALL_TASKS)[ROWS].count("helper_ref(Row") == 1
    assert reset(after, COURSE, {"2.3.1"}) == {**before, ROWS: before[ROWS].replace(square, "")}


def test_a_helper_that_the_learner_calls_and_lacks_keeps_its_name(starter: Sources) -> None:
    mine = re.sub(r"NOT_WRITTEN_YET.*largest.*", "outputs[0] = 2 * helper(row, 3);", starter[ROWS])
    headers = {"inline float helper(Row row, int n);\n": True, "": False}
    for header, is_mine in headers.items():
        before = {**starter, ROWS: mine, ROWS.with_name("mine.h"): header}
        after = catch_up(before, COURSE, {"2.3.1"})[ROWS]
        assert "outputs[0] = 2 * helper(row, 3);" in after
        assert ("static float helper_ref(" in after) == is_mine
        assert ("static float helper(" in after) != is_mine


def test_a_member_of_a_struct_keeps_its_name() -> None:
    source = "static int sum(P* p, P q) { return p->sum + q.sum + sum(p, q); }"
    expected = source.replace("sum(", "sum_ref(")
    assert renamed(Path("a.cpp"), source, {"sum": "sum_ref"}) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("from a import b, c", "from a import b, c, d"),
        ("from a import c, b", "from a import c, b\nfrom a import d"),  # in an order of the learner's own
    ],
)
def test_a_line_of_imports_that_the_learner_wrote_is_not_touched(line: str, expected: str) -> None:
    path, call = Path("a.py"), "\n\n\ndef f():\n    return d(b, c)\n"
    chunks, (theirs, *_) = list(split(path, line + call)), split(path, "from a import b, c, d" + call)
    is_imported(chunks, theirs, with_aliases(theirs, {"d": "d"}))
    assert join(chunks) == expected + call


def test_a_removed_function_comes_back(starter: Sources) -> None:
    at = starter[ROWS].index("/// The largest")
    before = {**starter, ROWS: starter[ROWS][:at].rstrip("\n")}
    assert "largest" not in before[ROWS]
    assert reset(before, COURSE, {"2.5.1"})[ROWS] == starter[ROWS]
    assert "std::sqrt(BLOCK)" in catch_up(before, COURSE, {"2.5.1"})[ROWS]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("int largest;\n", "largest: it is not a function any more, so remove it and run this again"),
        ("int x() {\n", "line 1: `{` is never closed"),
        ("int x;\nint f() {\n  if (x) {\n}\n", "line 2: `{` is never closed"),
        ("int x;\n}\n", "line 2: `}` closes nothing"),
        ("int f) {}\n", "line 1: `)` closes nothing"),
        ("namespace x {\n", "line 1: `{` is never closed"),
    ],
)
def test_what_cannot_be_reset_is_refused(starter: Sources, text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^tiny_llm/kernels/cpu/rows.cpp, {re.escape(sentence)}$"):
        reset({**starter, ROWS: text}, COURSE, {"2.5.1"})


def test_files_are_changed_with_a_backup(
    starter: Sources, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "tiny_llm"
    write(starter, package)
    assert read_package(package) == starter
    learner.change(package, starter, catch_up(starter, COURSE, ALL_TASKS), yes=True)
    assert read_package(package) == REFERENCE
    printed = capsys.readouterr().out
    assert "kernels/cpu/rows.cpp" in printed
    (folder,) = (tmp_path / "tiny_llm.backups").iterdir()
    assert (folder / ROWS).read_text() == starter[ROWS]


# Symbols


@pytest.mark.parametrize(
    ("path", "name", "first", "last"),
    [
        (ROWS, "helper", "static float helper(", "}"),
        (ROWS, "Sum", "struct Sum {", "};"),
        (ROWS, "NARROW", "constexpr int WIDE", ";"),
        (SHADER, "run", "/// One entry a thread.", "}"),
        (Path("m.py"), "A", "# Known.", "return 2"),
        (Path("m.py"), "A.g", "    def g", "return 2"),
        (Path("m.py"), "SIZE", "SIZE = 1", '"""How many."""'),
    ],
)
def test_the_source_of_a_symbol(path: Path, name: str, first: str, last: str) -> None:
    source = {**REFERENCE, Path("m.py"): MODULE}[path]
    text = definition_of(path, source, name)
    assert text.startswith(first)
    assert text.rstrip().endswith(last)
    assert text in source
    with pytest.raises(KeyError):
        definition_of(path, source, "no_such")


MODULE = '''"""A module."""

SIZE = 1
"""How many."""


# Known.
@known
class A:
    def f(self) -> int:
        return 1

    def g(self) -> int:
        return 2


def h() -> int:
    return 3
'''
