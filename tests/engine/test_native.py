"""The fast BLAS and compiled code: put in place, cached, shared safely, done without where need be."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernel_runtime import native
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


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder of compiled code; the compiler is looked for anew."""
    monkeypatch.setenv("TINY_LLM_CACHE", str(tmp_path / "cache"))
    forget_compiler()
    yield tmp_path / "cache" / "native"
    forget_compiler()


def forget_compiler() -> None:
    native.find_compiler.cache_clear()
    native.machine_key.cache_clear()


def test_another_source_is_another_library(tmp_path: Path, libraries: Path) -> None:
    source = tmp_path / "answer.cpp"
    for answer in (1, 2):
        source.write_text(f'extern "C" int answer() {{ return {answer}; }}\n')
        library = native.compile_library("answer", [source], [])
        assert library.parent == libraries
        assert ctypes.CDLL(str(library)).answer() == answer


def test_a_compiler_error_is_one_sentence_with_its_line(tmp_path: Path, libraries: Path) -> None:
    source = tmp_path / "wrong.cpp"
    source.write_text("int answer() { return 42 }\n")
    with pytest.raises(native.BuildError, match=r"^the compiler refused: wrong.cpp:1:[^\n]*$"):
        native.compile_library("wrong", [source], [])
    assert [path.suffix for path in libraries.iterdir()] == [".refused"]


def test_a_refusal_is_remembered_unless_a_file_was_missing(
    tmp_path: Path, libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, compiler, notes = tmp_path / "wrong.cpp", tmp_path / "c++", tmp_path / "notes"
    compiler.write_text(f'#!/bin/sh\necho "$@" >> {notes}\nexec {native.find_compiler()} "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    forget_compiler()
    for text, expected in {"int x = y;": 1, "int x = z;": 1, '#include "none.h"': 3}.items():
        source.write_text(text)
        notes.write_text("")
        for _ in range(3):
            with pytest.raises(native.BuildError, match=r"^the compiler refused: wrong.cpp:1:"):
                native.compile_library("wrong", [source], [])
        assert sum(str(source) in line for line in notes.read_text().splitlines()) == expected, text


def test_an_error_that_may_pass_is_not_remembered(
    tmp_path: Path, libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, compiler = tmp_path / "right.cpp", tmp_path / "c++"
    source.write_text("int x = 1;\n")
    linker = 'case " $* " in *" -c "*) ;; *) echo "ld: error: no space left" >&2; exit 1;; esac'
    compiler.write_text(f'#!/bin/sh\n{linker}\nexec {native.find_compiler()} "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    forget_compiler()
    with pytest.raises(native.BuildError, match="ld: error: no space left"):
        native.compile_library("right", [source], [])
    assert list(libraries.iterdir()) == []


FAKE_COMPILER = """#!/bin/sh
echo "$@" >> "$NOTES"
if [ "$1" = --version ]; then echo "clang $CLANG"; exit; fi
for target; do :; done
echo > "$target"
"""
FAKE_XCRUN = '#!/bin/sh\necho xcrun "$@" >> "$NOTES"; echo $SDK\n'
QUESTIONS = ["--version", "xcrun --show-sdk-version"]
Compile = Callable[..., tuple[list[str], list[str]]]


@pytest.fixture
def compile_on_a_mac(tmp_path: Path, libraries: Path, monkeypatch: pytest.MonkeyPatch) -> Compile:
    """Compiles two libraries: their names, and how compiler and xcrun were called; both here are scripts."""
    notes, sources = tmp_path / "notes", [tmp_path / "a.cpp", tmp_path / "b.cpp"]
    for name, script in (("c++", FAKE_COMPILER), ("xcrun", FAKE_XCRUN)):
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    for source in sources:
        source.write_text(source.name)
    monkeypatch.setattr(sys, "platform", "darwin")
    variables = {"CXX": str(tmp_path / "c++"), "NOTES": str(notes), "CLANG": "1700.3", "SDK": "26.1"}
    variables["PATH"] = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"

    def compile_two(**changed: str) -> tuple[list[str], list[str]]:
        for name, value in {**variables, **changed}.items():
            monkeypatch.setenv(name, value)
        notes.write_text("")
        forget_compiler()
        names = [native.compile_library("answer", [source], []).name for source in sources]
        return names, notes.read_text().splitlines()

    return compile_two


@pytest.mark.parametrize("changed", [{"CLANG": "1700.4"}, {"SDK": "26.2"}, {"SDKROOT": "/SDKs/MacOSX15.sdk"}])
def test_another_compiler_or_sdk_behind_the_same_file_compiles_anew(
    changed: dict[str, str], compile_on_a_mac: Compile
) -> None:
    first, _ = compile_on_a_mac()
    assert compile_on_a_mac()[0] == first
    assert not set(first) & set(compile_on_a_mac(**changed)[0])


def test_a_process_asks_for_versions_once_and_compiles_what_is_missing_alone(
    compile_on_a_mac: Compile,
) -> None:
    _, notes = compile_on_a_mac()
    assert sorted(set(notes) & set(QUESTIONS)) == sorted(notes[:2]) == sorted(QUESTIONS)
    assert len(notes) == 6, "two questions, two compilations, two linkings"
    assert sorted(compile_on_a_mac()[1]) == sorted(QUESTIONS)


def test_options_reach_the_compiler_or_the_linker_as_they_are(
    tmp_path: Path, compile_on_a_mac: Compile
) -> None:
    """An option may take the next one as its value."""
    compile_on_a_mac()
    (tmp_path / "notes").write_text("")
    native.compile_library(
        "answer",
        [tmp_path / "a.cpp", tmp_path / "b.cpp"],
        ["-include", "-lmore.h", "-u"],
        linker_options=["-undefined", "dynamic_lookup", "-lanswer"],
    )
    *compilations, linking = (line.split() for line in (tmp_path / "notes").read_text().splitlines())
    assert len(compilations) == 2
    for compilation in compilations:
        assert compilation[:5] == ["-include", "-lmore.h", "-u", "-fPIC", "-c"]
    assert [Path(word).name for word in linking[1:3]] == ["0.o", "1.o"]
    assert linking[3:6] == ["-undefined", "dynamic_lookup", "-lanswer"]
