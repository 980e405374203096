"""The native libraries as an Apple-silicon Mac builds them: all link, and find there what they need."""

import ctypes
import re
from pathlib import Path

import pytest

from kernel_runtime import native
from kernel_runtime.cpu_kernel import included_sources
from tests.platforms.kernel_sources import CPU_SOURCES
from tests.platforms.mac import (
    LIBCXX,
    as_on_a_mac,
    build_all,
    build_jobs,
    mac_package,
    mlx_libraries,
    names_of_libcxx,
)
from tests.platforms.mach_o import Library, names_in_stub, read_library
from tests.platforms.zig import zig

pytestmark = pytest.mark.sampled(4, "kernel_runtime/", "tiny_llm_ref/kernels/")
SYSTEM, MLX = "/usr/lib/libSystem.B.dylib", "@rpath/libmlx.dylib"
KERNEL = re.compile(r"^KERNEL (\w+)\(", re.M)
EMULATED = {"_tiny_llm_emulate", "tiny_llm_switch_stack"}
OF_LINKER = {"__mh_dylib_header", "___dso_handle"}  # which Apple's does not export


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Library]:
    """Every library; a failure with the compiler's words where one cannot be built."""
    built = build_all(tmp_path_factory.mktemp("mac"))
    refused = {name: str(result) for name, result in built.items() if not isinstance(result, Path)}
    assert not refused
    return {name: read_library(path) for name, path in built.items() if isinstance(path, Path)}


@pytest.fixture(scope="module")
def offered() -> dict[str, set[str]]:
    """What macOS and MLX's wheel offer, by library."""
    stub = zig().parent / "lib" / "libc" / "darwin" / "libSystem.tbd"
    return {
        SYSTEM: names_in_stub(stub),
        LIBCXX: names_of_libcxx(),
        MLX: read_library(mlx_libraries()[0]).exported,
    }


def test_to_ask_the_compiler_for_its_version_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with as_on_a_mac(tmp_path):
        assert "clang version" in native.machine_key()
    assert not list(Path().iterdir())


def is_of_python(name: str) -> bool:
    return hasattr(ctypes.pythonapi, name.removeprefix("_"))


@pytest.mark.parametrize("name", build_jobs())
def test_what_a_library_needs_is_there(
    name: str, libraries: dict[str, Library], offered: dict[str, set[str]]
) -> None:
    library = libraries[name]
    assert (MLX in library.loaded) == (name == "extension")
    missing = [
        symbol
        for symbol, place in library.undefined.items()
        if not (symbol in offered[place] if place else name == "extension" and is_of_python(symbol))
    ]
    assert missing == []


@pytest.mark.parametrize("name", build_jobs())
def test_a_library_exports_its_functions_alone(name: str, libraries: dict[str, Library]) -> None:
    """What is weak besides would be merged with that of the learner's library, or the reference's."""
    sources = {source.name: source for source in CPU_SOURCES}
    expected = EMULATED
    if name == "extension":
        expected = {"_PyInit_tiny_llm_extension", "_tiny_llm_run_tasks"}
    elif name in sources:
        files = sources[name], *included_sources(sources[name])
        text = "".join(file.read_text() for file in files)
        expected = {"_tiny_llm_run_tasks", *(f"_{function}" for function in KERNEL.findall(text))}
    assert libraries[name].exported - OF_LINKER == expected
    assert libraries[name].weak == set()


def test_the_extension_finds_mlx_where_it_is_installed(libraries: dict[str, Library]) -> None:
    assert libraries["extension"].search_paths == [str(mac_package() / "lib")]
