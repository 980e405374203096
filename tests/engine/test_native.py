"""The fast BLAS and compiled code: put in place, cached, shared safely, done without where need be."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.course import ROOT

PRODUCT = "x = mx.ones((64, 64)); mx.eval(mx.matmul(x, x, stream=mx.cpu)); "
COUNT = "print(native.num_blas_calls())"
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only MLX's Linux wheel has the slow BLAS")


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "TINY_LLM_BLAS": "on", "TINY_LLM_KERNELS": "on", **environment},
        capture_output=True,
        text=True,
        check=True,
    )


@ON_LINUX
def test_mlx_multiplies_with_openblas() -> None:
    result = run(f"from kernel_runtime import native; import mlx.core as mx; {PRODUCT}{COUNT}")
    assert int(result.stdout) > 0
    assert not result.stderr


@ON_LINUX
@pytest.mark.parametrize("command", ["scripts.run.generate", "benches.chunking"])
def test_commands_load_openblas_before_mlx(command: str) -> None:
    result = run(f"import {command}, mlx.core as mx; from kernel_runtime import native; {PRODUCT}{COUNT}")
    assert int(result.stdout) > 0
    assert not result.stderr


@ON_LINUX
def test_mlx_imported_first_is_said_in_one_line() -> None:
    result = run("import mlx.core, kernel_runtime.native")
    (line,) = result.stderr.splitlines()
    assert "import tiny_llm first" in line


@ON_LINUX
def test_a_switch_leaves_the_blas_alone() -> None:
    result = run(
        f"from kernel_runtime import native; import mlx.core as mx; {PRODUCT}{COUNT}", TINY_LLM_BLAS="off"
    )
    assert result.stdout.strip() == "None"
    assert not result.stderr


@ON_LINUX
def test_without_a_compiler_one_line_says_so_and_mlx_works(tmp_path: Path) -> None:
    program = f"import scripts, kernel_runtime.native, mlx.core as mx; {PRODUCT}print('works')"
    result = run(program, CXX="no-such-compiler", TINY_LLM_CACHE=str(tmp_path))
    (line,) = result.stderr.splitlines()
    assert "there is no C++ compiler here" in line
    assert "TINY_LLM_BLAS=off" in line
    assert result.stdout.strip() == "works"


def test_processes_that_compile_at_the_same_time_share_one_library(tmp_path: Path) -> None:
    source = tmp_path / "answer.cpp"
    source.write_text('extern "C" int answer() { return 42; }\n')
    program = (
        "import ctypes; from pathlib import Path; from kernel_runtime.native import compile_library; "
        f"library = compile_library('answer', [Path({str(source)!r})], []); "
        "print(ctypes.CDLL(str(library)).answer())"
    )
    environment = {**os.environ, "TINY_LLM_CACHE": str(tmp_path / "cache")}
    processes = [
        subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, env=environment, stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    assert [process.communicate()[0].strip() for process in processes] == [b"42"] * 3
    libraries = [path for path in (tmp_path / "cache" / "native").iterdir() if path.name.startswith("answer")]
    assert len(libraries) == 1
    assert not [path for path in (tmp_path / "cache" / "native").iterdir() if path.name.startswith(".")]


def test_another_source_is_another_library(tmp_path: Path) -> None:
    program = (
        "import ctypes, sys; from pathlib import Path; from kernel_runtime.native import compile_library; "
        "print(ctypes.CDLL(str(compile_library('answer', [Path(sys.argv[1])], []))).answer())"
    )
    for answer in (1, 2):
        source = tmp_path / "answer.cpp"
        source.write_text(f'extern "C" int answer() {{ return {answer}; }}\n')
        result = subprocess.run(
            [sys.executable, "-c", program, str(source)],
            cwd=ROOT,
            env={**os.environ, "TINY_LLM_CACHE": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            check=True,
        )
        assert int(result.stdout) == answer


FAKE_COMPILER = """#!/bin/sh
echo "$@" >> "$NOTES"
if [ "$1" = --version ]; then echo "clang $CLANG"; exit; fi
for target; do :; done
echo > "$target"
"""
FAKE_XCRUN = '#!/bin/sh\necho xcrun "$@" >> "$NOTES"; echo $SDK\n'
COMPILE_TWICE = """
import sys
from pathlib import Path
from kernel_runtime import native
sys.platform = "darwin"
for name in ("a.cpp", "b.cpp"):
    Path(name).write_text(f"// {name}")
    print(native.compile_library("answer", [Path(name)], []).name)
"""


def compile_on_a_mac(folder: Path, **environment: str) -> tuple[list[str], list[str]]:
    """Names of two libraries, and how compiler and xcrun were called; both here are scripts."""
    notes = folder / "notes"
    notes.write_text("")
    for name, script in (("c++", FAKE_COMPILER), ("xcrun", FAKE_XCRUN)):
        if not (folder / name).exists():
            (folder / name).write_text(script)
            (folder / name).chmod(0o755)
    variables = {
        "CXX": str(folder / "c++"),
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "TINY_LLM_BLAS": "off",
        "TINY_LLM_CACHE": str(folder / "cache"),
        "NOTES": str(notes),
    }
    result = subprocess.run(
        [sys.executable, "-c", COMPILE_TWICE],
        cwd=folder,
        env={**os.environ, **variables, "CLANG": "1700.3", "SDK": "26.1", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout.split(), notes.read_text().splitlines()


@pytest.mark.parametrize("changed", [{"CLANG": "1700.4"}, {"SDK": "26.2"}, {"SDKROOT": "/SDKs/MacOSX15.sdk"}])
def test_another_compiler_or_sdk_behind_the_same_file_compiles_anew(
    changed: dict[str, str], tmp_path: Path
) -> None:
    first, _ = compile_on_a_mac(tmp_path)
    assert compile_on_a_mac(tmp_path)[0] == first
    second, _ = compile_on_a_mac(tmp_path, **changed)
    assert not set(first) & set(second)


def test_a_process_asks_for_versions_once_and_compiles_what_is_missing_alone(tmp_path: Path) -> None:
    questions = ["--version", "xcrun --show-sdk-version"]
    _, notes = compile_on_a_mac(tmp_path)
    assert sorted(set(notes) & set(questions)) == sorted(notes[:2]) == sorted(questions)
    assert len(notes) == 6, "two questions, two compilations, two linkings"
    assert sorted(compile_on_a_mac(tmp_path)[1]) == sorted(questions)


def test_options_reach_the_compiler_or_the_linker_as_they_are(tmp_path: Path) -> None:
    """The compiler here notes what it is asked for, whole: an option may take the next one as its value."""
    compiler, notes = tmp_path / "c++", tmp_path / "notes"
    compiler.write_text(f'#!/bin/sh\necho "$@" >> {notes}\nfor target; do :; done\necho > "$target"\n')
    compiler.chmod(0o755)
    program = (
        "from pathlib import Path; from kernel_runtime.native import compile_library; "
        "compile_library('answer', [Path('a.cpp'), Path('b.cpp')], ['-include', '-lmore.h', '-u'], "
        "linker_options=['-undefined', 'dynamic_lookup', '-lanswer'])"
    )
    for source in ("a.cpp", "b.cpp"):
        (tmp_path / source).write_text("")
    environment = {"CXX": str(compiler), "TINY_LLM_CACHE": str(tmp_path / "cache"), "TINY_LLM_BLAS": "off"}
    subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
        check=True,
    )
    calls = [line.split() for line in notes.read_text().splitlines() if "-o" in line.split()]
    *compilations, linking = calls
    for compilation in compilations:
        assert compilation[:5] == ["-include", "-lmore.h", "-u", "-fPIC", "-c"]
    assert len(compilations) == 2
    assert [Path(word).name for word in linking[1:3]] == ["0.o", "1.o"]
    assert linking[3:6] == ["-undefined", "dynamic_lookup", "-lanswer"]


def test_a_compiler_error_is_one_sentence_with_its_line(tmp_path: Path) -> None:
    source = tmp_path / "wrong.cpp"
    source.write_text("int answer() { return 42 }\n")
    program = (
        "from pathlib import Path; from kernel_runtime.native import BuildError, compile_library\n"
        f"try: compile_library('wrong', [Path({str(source)!r})], [])\n"
        "except BuildError as error: print(error)"
    )
    result = run(program, TINY_LLM_CACHE=str(tmp_path / "cache"))
    (line,) = result.stdout.splitlines()
    assert "wrong.cpp:1:" in line
    assert not [path for path in (tmp_path / "cache" / "native").iterdir() if "wrong" in path.name]
