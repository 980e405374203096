"""Holes in C++, Metal and CUDA sources: made, filled, and made again."""

import re
from pathlib import Path

import pytest

from scripts import patching, render
from scripts.c_source import join, split
from scripts.course import Course, Day, Task
from scripts.languages import holes_of, is_bound_in
from scripts.learn import learner
from scripts.learn.catch_up import catch_up, mixed_classes
from scripts.learn.learner import functions_of_tasks, read_package, write_bytes
from scripts.learn.progress import tasks_with_holes
from scripts.learn.reset import reset
from scripts.render_c import dig_holes, holes, render_c

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


def rendered(source: str, *names: str, owned: tuple[str, ...] = ()) -> str:
    return render_c(source, {name: SENTENCE.format(1, name) for name in names}, {*names, *owned})


def flat(source: str) -> str:
    return re.sub(r"NOT_WRITTEN_YET\(.*\);", "HOLE;", source)


def test_chunks_are_the_source_again() -> None:
    assert join(split(KERNEL)) == KERNEL
    defined = [(chunk.kind, *chunk.names) for chunk in split(KERNEL) if chunk.names]
    assert defined == [
        ("define", "UNROLL"),
        ("constant", "BLOCK"),
        ("constant", "WIDE", "NARROW"),
        ("constant", "NAME"),
        ("type", "Row"),
        ("type", "Sum"),
        ("function", "square"),
        ("function", "helper"),
        ("function", "add_up"),
        ("function", "add_up"),
        ("function", "largest"),
    ]


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

namespace tiny {
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

int f() {
  return hidden() + lanes();
}

}  // extern "C"

int Reader::next() {
  return 1;
}
}  // namespace tiny
"""


def test_functions_in_blocks_and_blocks_that_become_empty() -> None:
    assert (
        flat(rendered(BLOCKS, "f", "Reader.next"))
        == """#include "kernel.h"

namespace tiny {

#if defined(__ARM_NEON)
#include <arm_neon.h>
#endif

extern "C" {

int f() {
  HOLE;
}

}  // extern "C"

int Reader::next() {
  HOLE;
}
}  // namespace tiny
"""
    )


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
    one = flat(rendered(CUDA, "reduce"))
    assert [chunk.names for chunk in split(one) if chunk.names] == [
        ("WARP", "BLOCK"),
        ("reduce",),
        ("clear",),
        ("launch",),
    ]
    assert "__global__ void __launch_bounds__(BLOCK) reduce(const float* x, float* out) {\n  HOLE;" in one
    both = flat(rendered(CUDA, "reduce", "launch"))
    assert "clear" not in both
    assert "template <int N>" in both


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
    chunk, last = split(source)
    assert (chunk.kind, chunk.names, last.names) == ("function", (name,), ("last",))
    assert (
        flat(dig_holes(source, {name: SENTENCE.format(1, name)})) == f"{header} {{\n  HOLE;\n}}\nint last;\n"
    )


@pytest.mark.parametrize(
    ("code", "kind", "names"),
    [
        ("constexpr auto f = [](int x) { return x; };", "constant", ("f",)),
        ("static const int table[2][2] = {{1, 2}, {3, 4}};", "constant", ("table",)),
        ("static std::vector<float> rows{1, 2};", "constant", ("rows",)),
        ("enum class Mode : int { FAST, SLOW };", "type", ("Mode", "FAST", "SLOW")),
        ("struct alignas(16) Tile final : Base<int> {};", "type", ("Tile",)),
        ("typedef float Floats __attribute__((vector_size(16)));", "type", ("Floats",)),
        ("static_assert(sizeof(int) == 4);", "plain", ()),
        ("template void f<float>(float x);", "plain", ()),
        ("#undef UNROLL", "undef", ("UNROLL",)),
    ],
)
def test_declarations(code: str, kind: str, names: tuple[str, ...]) -> None:
    chunk, last = split(f"{code}\nint last;\n")
    assert (chunk.kind, chunk.names, last.names) == (kind, names, ("last",))


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("int x;\nint f() {\n  if (x) {\n}\n", "line 2: `{` is never closed"),
        ("int x;\n}\n", "line 2: there is nothing that this could close"),
        ("int f) {}\n", "line 1: `)` closes nothing"),
        ("#if X\nint x;\n", "line 1: what opens here is never closed"),
        ("namespace x {\n#endif\n}\n", "line 2: there is nothing that this could close"),
    ],
)
def test_what_is_broken_is_named_with_its_line(source: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        split(source)


def test_line_ends_of_windows() -> None:
    source = KERNEL.replace("\n", "\r\n")
    assert join(split(source)) == source
    assert rendered(source, "add_up") == rendered(KERNEL, "add_up").replace("\n", "\r\n")


def test_holes_are_found_in_what_is_broken_but_not_in_comments() -> None:
    hole = f'NOT_WRITTEN_YET("{SENTENCE.format(1, "f")}");'
    assert holes(f"int f() {{ {hole} }} }}") == {"f": SENTENCE.format(1, "f")}
    assert holes(f"// {hole}\n#define NOT_WRITTEN_YET(sentence) 1\n") == {}


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
    Path("__init__.py"): '"""A package."""\n',
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
def starter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> patching.Sources:
    """The made-up package with nothing solved, whose reference is the reference for now."""
    write_bytes(REFERENCE, tmp_path / "reference")
    monkeypatch.setattr(render, "REFERENCE", tmp_path / "reference")
    return render.render((), COURSE)


def test_the_starter_has_every_file_and_a_hole_for_every_symbol(starter: patching.Sources) -> None:
    assert starter.keys() == REFERENCE.keys()
    found = [(path, name) for path, source in starter.items() for name in holes_of(path, source)]
    assert found == [(ROWS, "add_up"), (ROWS, "largest"), (DISPATCH, "best"), (SHADER, "run")]
    assert found == functions_of_tasks(COURSE, ALL_TASKS)
    assert tasks_with_holes(starter) == ALL_TASKS
    assert "import" not in starter[DISPATCH]
    assert all(starter[path] == REFERENCE[path] for path in REFERENCE if path.suffix == ".h")


def test_a_symbol_that_is_not_there_is_an_error(starter: patching.Sources) -> None:
    course = Course((Day(2, 3, "", (Task("2.3.1", 1, "", ("kernels.cpu.rows.no_such",)),)),))
    with pytest.raises(KeyError, match="no_such"):
        render.render((), course)


def test_catch_up_and_reset_are_the_way_there_and_back(starter: patching.Sources) -> None:
    assert catch_up(starter, COURSE, ALL_TASKS) == REFERENCE
    assert reset(REFERENCE, COURSE, ALL_TASKS) == starter
    for task in sorted(ALL_TASKS):
        after = catch_up(starter, COURSE, {task})
        assert after == render.render({task}, COURSE)
        assert mixed_classes(starter, starter, after) == []
        assert reset(after, COURSE, {task}) == starter
        assert catch_up(reset(REFERENCE, COURSE, {task}), COURSE, {task}) == REFERENCE


def test_helpers_of_one_task_go_between_those_of_another(starter: patching.Sources) -> None:
    source = (
        "constexpr int A = 1;\nconstexpr int B = 2;\nconstexpr int C = 3;\n\n"
        "float largest() { return A + C; }\n\nfloat add_up() { return B; }\n"
    )
    (render.REFERENCE / ROWS).write_text(source)
    for task in sorted(ALL_TASKS):
        before = reset({**REFERENCE, ROWS: source}, COURSE, {task})
        assert before[ROWS].count("constexpr") == {"2.3.1": 2, "2.5.1": 1}[task]
        assert catch_up(before, COURSE, {task})[ROWS] == source


def test_blocks_come_and_go_with_what_is_in_them(
    starter: patching.Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    course = Course((Day(2, 3, "", (Task("2.3.1", 1, "", ("kernels.cpu.rows.f",)),)),))
    (render.REFERENCE / ROWS).write_text(BLOCKS)
    begun = render.render((), course)
    assert "lanes" not in begun[ROWS]
    assert catch_up(begun, course, {"2.3.1"})[ROWS] == BLOCKS
    assert reset({**begun, ROWS: BLOCKS}, course, {"2.3.1"}) == begun


def test_what_the_learner_wrote_stays(starter: patching.Sources) -> None:
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


def test_a_helper_of_the_learners_with_a_known_name_is_not_doubled(starter: patching.Sources) -> None:
    mine = (
        "#define UNROLL(x) x\n\nstatic float helper(Row row, int n) { UNROLL(n = 1) return n; }\n\n/// Adds a"
    )
    before = {**starter, ROWS: starter[ROWS].replace("/// Adds a", mine)}
    after = catch_up(before, COURSE, {"2.3.1"})[ROWS]
    assert after.count("#define UNROLL") == after.count("float helper(") == 1
    assert "sum.total + helper(row, size)" in after
    assert "square" not in after
    assert mine in reset({**before, ROWS: after}, COURSE, {"2.3.1"})[ROWS]


def test_a_removed_function_comes_back(starter: patching.Sources) -> None:
    at = starter[ROWS].index("/// The largest")
    before = {**starter, ROWS: starter[ROWS][:at].rstrip("\n")}
    assert not is_bound_in(ROWS, before[ROWS], "largest")
    assert reset(before, COURSE, {"2.5.1"})[ROWS] == starter[ROWS]
    assert "std::sqrt(BLOCK)" in catch_up(before, COURSE, {"2.5.1"})[ROWS]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("int largest;\n", "largest: it is not a function any more, so remove it and run this again"),
        ("int x() {\n", "line 1: `{` is never closed"),
    ],
)
def test_what_cannot_be_reset_is_refused(starter: patching.Sources, text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^tiny_llm/kernels/cpu/rows.cpp, {re.escape(sentence)}$"):
        reset({**starter, ROWS: text}, COURSE, {"2.5.1"})


def test_files_are_changed_with_a_backup(
    starter: patching.Sources, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "tiny_llm"
    write_bytes(starter, package)
    assert read_package(package) == starter
    learner.change(package, starter, catch_up(starter, COURSE, ALL_TASKS), yes=True)
    assert read_package(package) == REFERENCE
    printed = capsys.readouterr().out
    assert "kernels/cpu/rows.cpp" in printed
    (folder,) = (tmp_path / "tiny_llm.backups").iterdir()
    assert (folder / ROWS).read_text() == starter[ROWS]
