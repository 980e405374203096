"""Native code, compiled on the user's machine at first use and kept in a cache; first of all a fast BLAS.

Importing this module puts OpenBLAS in the place of the reference BLAS of MLX's Linux wheel, whose float32
product is about fifty times as slow. The symbols of the BLAS are bound when MLX is loaded, so the module
must come before `mlx.core` and imports nothing but the standard library.

`TINY_LLM_BLAS=off` leaves MLX as it is, `TINY_LLM_KERNELS` chooses what models are made of (`kernels_mode`),
`TINY_LLM_INVARIANT=1` lets a row's bits never depend on its neighbours, and `TINY_LLM_CACHE` chooses
the folder of the cache.
"""

import ctypes
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

COMPILERS = ("c++", "g++", "clang++")
COMPILER_FIX = "xcode-select --install" if sys.platform == "darwin" else "apt install g++ (or your system's)"
# macOS merges templates and inline functions of one name across a process's libraries, so that a learner's
# kernels could call the reference's. What a library does not export stays its own.
HIDE_FUNCTIONS = "-fvisibility=hidden"
LIBRARY_SUFFIX = ".dylib" if sys.platform == "darwin" else ".so"

# OpenBLAS as scipy packs it prefixes its symbols. The counter proves that MLX calls these.
BLAS_SHIM = r"""
#define FORWARD(name, real)                                                                      \
  void scipy_cblas_##name(int, int, int, int, int, int, real, const real*, int, const real*, int, \
                          real, real*, int);                                                     \
  void cblas_##name(int order, int ta, int tb, int m, int n, int k, real alpha, const real* a,   \
                    int lda, const real* b, int ldb, real beta, real* c, int ldc) {              \
    __atomic_fetch_add(&tiny_llm_blas_calls, 1, __ATOMIC_RELAXED);                               \
    scipy_cblas_##name(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);             \
  }
extern "C" {
long tiny_llm_blas_calls = 0;
FORWARD(sgemm, float)
FORWARD(dgemm, double)
}
"""


class BuildError(RuntimeError):
    """Native code cannot be compiled here; the message says why and how to mend it."""


def is_on(switch: str) -> bool:
    """Whether an environment variable such as TINY_LLM_KERNELS leaves its feature on."""
    return os.environ.get(switch, "on").lower() not in ("off", "0", "no", "false")


def kernels_mode() -> str:
    """What models are made of, as TINY_LLM_KERNELS has it.

    Returns:
        own: the course's kernels where they work, plain array operations elsewhere.
        mlx: MLX's own operations.
        race: the fastest of those for each operation and number of rows; the default, and "on" as well.
        off: plain array operations alone.

    Raises:
        ValueError: the variable is something else, or mlx where bits must not change.
    """
    chosen = os.environ.get("TINY_LLM_KERNELS", "race")
    if not is_on("TINY_LLM_KERNELS"):
        return "off"
    mode = "race" if chosen.lower() in ("on", "1", "yes", "true", "") else chosen.lower()
    if mode not in ("own", "mlx", "race"):
        raise ValueError(f"TINY_LLM_KERNELS is {chosen!r}: set it to own, mlx, race or off, or unset it")
    if mode == "mlx" and is_invariant():
        raise ValueError(
            "TINY_LLM_KERNELS is 'mlx', whose operations do not keep a row's bits: unset TINY_LLM_INVARIANT"
        )
    return mode


def is_invariant() -> bool:
    """Whether TINY_LLM_INVARIANT asks that a row's bits never depend on its neighbours, whatever it costs."""
    return os.environ.get("TINY_LLM_INVARIANT", "off").lower() in ("on", "1", "yes", "true")


def notice(text: str) -> None:
    """One line for the user, on standard error."""
    print(f"tiny-llm: {text}", file=sys.stderr)


def cache_dir() -> Path:
    """Where compiled code is kept, made if it is not there: TINY_LLM_CACHE, or the user's cache folder."""
    if chosen := os.environ.get("TINY_LLM_CACHE"):
        folder = Path(chosen).expanduser().absolute()
    elif sys.platform == "darwin":
        folder = Path.home() / "Library" / "Caches" / "tiny-llm"
    else:
        xdg = os.environ.get("XDG_CACHE_HOME", "")
        folder = (Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache") / "tiny-llm"
    folder = folder / "native"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@cache
def find_compiler() -> str:
    """The C++ compiler: that of the variable CXX, or the first of the usual names.

    Raises:
        BuildError: there is none.
    """
    for name in [os.environ["CXX"]] if os.environ.get("CXX") else COMPILERS:
        if (path := shutil.which(name)) and not _is_stand_in(path):
            return path
    raise BuildError(f"there is no C++ compiler here: {COMPILER_FIX}")


def _is_stand_in(path: str) -> bool:
    """Whether this is macOS's stand-in for a tool that is not installed: running it opens a dialog."""
    if sys.platform != "darwin" or Path(path).parent != Path("/usr/bin"):
        return False
    answer = subprocess.run(["xcode-select", "-p"], capture_output=True, text=True)
    return answer.returncode != 0 or not Path(answer.stdout.strip()).is_dir()


def architecture_flags() -> list[str]:
    """Flags that let the compiler use all this processor can do; TINY_LLM_MARCH chooses another target."""
    target = os.environ.get("TINY_LLM_MARCH", "native")
    return [f"-mcpu={target}" if platform.machine() in ("arm64", "aarch64") else f"-march={target}"]


@cache
def machine_key() -> str:
    """What compiled code depends on besides its source: the compiler, the SDK and the processor.

    The compiler is asked for its version: on a Mac its file is a shim, which stays when Xcode changes.
    """
    compiler = Path(find_compiler()).resolve()
    stat = compiler.stat()
    tools = f"{compiler} {stat.st_size} {stat.st_mtime_ns} {answer_of(str(compiler), '--version')}"
    if sys.platform == "darwin":
        tools += f" SDK {os.environ.get('SDKROOT', '')} {answer_of('xcrun', '--show-sdk-version')}"
    cpu_info = Path("/proc/cpuinfo")
    lines = cpu_info.read_text().splitlines() if cpu_info.exists() else []
    features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{tools} {platform.machine()} {platform.version()} {features}"


def answer_of(*command: str) -> str:
    """What a program prints; nothing where it is missing."""
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace").stdout.strip()
    except OSError:
        return ""


def compile_library(
    name: str,
    sources: Sequence[Path],
    options: Sequence[str],
    key: str = "",
    suffix: str = LIBRARY_SUFFIX,
    headers: Path | None = None,
    linker_options: Sequence[str] = (),
) -> Path:
    """The shared library of some sources, compiled unless the cache has it.

    Processes that come at the same time each compile and put the same file in place, in one step.

    Args:
        name: start of the file's name.
        sources: C++ files, each compiled in a process of its own.
        options: flags for the compiler.
        key: what else the result depends on: headers, versions.
        suffix: end of the file's name.
        headers: folder of headers whose text the key holds, so that it does not matter where they are.
        linker_options: flags for the linking, which the compiler never sees.

    Raises:
        BuildError: there is no compiler, or it refused; with its first error. That is remembered as well.
    """
    content = [file.read_bytes() for file in sources]
    digests = [hashlib.sha256(text).hexdigest() for text in content]
    parts = [machine_key(), key, *options, "linked with", *linker_options, *digests]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    try:
        library = cache_dir() / f"{name}-{digest}{suffix}"
        refusal = library.with_suffix(".refused")
        if refusal.exists():
            raise BuildError(refusal.read_text(encoding="utf-8"))
        if not library.exists():
            with tempfile.TemporaryDirectory(dir=library.parent, prefix=f".{name}-") as folder:
                include = [f"-I{headers}"] if headers else []
                try:
                    made = _compile(sources, [*options, *include], linker_options, Path(folder))
                except BuildError as error:
                    _remember(error, refusal, Path(folder))
                    raise
                os.replace(made, library)
    except OSError as error:
        raise BuildError(f"the cache of compiled code cannot be written: {error}") from None
    return library


def _remember(error: BuildError, refusal: Path, folder: Path) -> None:
    """Refuse the same sources at once from now on if the compiler named one of their lines.

    Other errors may pass: a linker's for want of space, say.
    """
    if re.search(r":\d+: error: ", str(error)):
        (folder / "refusal").write_text(str(error), encoding="utf-8")
        os.replace(folder / "refusal", refusal)


def _compile(
    sources: Sequence[Path], options: Sequence[str], linker_options: Sequence[str], folder: Path
) -> Path:
    """Compile the sources side by side and link them."""
    objects = [folder / f"{number}.o" for number in range(len(sources))]
    compilations = [
        _start([*options, "-fPIC", "-c", str(source), "-o", str(target)])
        for source, target in zip(sources, objects, strict=True)
    ]
    for process in compilations:
        _finish(process)
    library = folder / "library"
    _finish(_start(["-shared", *map(str, objects), *linker_options, "-o", str(library)]))
    return library


def _start(arguments: Sequence[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen([find_compiler(), *arguments], stderr=subprocess.PIPE, text=True)


def _finish(process: "subprocess.Popen[str]") -> None:
    _, messages = process.communicate()
    if process.returncode != 0:
        lines = messages.splitlines()
        errors = [line for line in lines if "error: " in line] or lines or ["it gave no reason"]
        raise BuildError(f"the compiler refused: {re.sub(r'^/[^:]*/', '', errors[0].strip())}")


def replace_reference_blas() -> None:
    """Load OpenBLAS where MLX will look for its BLAS; a notice if that cannot be done."""
    if sys.platform != "linux" or not is_on("TINY_LLM_BLAS") or num_blas_calls() is not None:
        return
    if importlib.util.find_spec("mlx") is None:
        return  # before set-up: no command but doctor runs, which says so itself
    try:
        if "mlx.core" in sys.modules:
            raise BuildError("mlx.core was imported before it: import tiny_llm first")
        package = importlib.util.find_spec("scipy_openblas32")
        if package is None or package.origin is None:
            raise BuildError("scipy-openblas32 is not installed: run `pdm run setup`")
        openblas = Path(package.origin).parent / "lib" / "libscipy_openblas.so"
        ctypes.CDLL(str(openblas), ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(_compile_shim(openblas)), ctypes.RTLD_GLOBAL)
    except (BuildError, OSError) as error:
        notice(f"OpenBLAS is not in use, so products are slow: {error}. TINY_LLM_BLAS=off hides this line.")
        os.environ["TINY_LLM_BLAS"] = "off"  # once is enough, for the processes started from here too


def _compile_shim(openblas: Path) -> Path:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "blas.cpp"
        source.write_text(BLAS_SHIM)
        return compile_library("blas", [source], ["-O1"], key=str(openblas))


def num_blas_calls() -> int | None:
    """How often MLX has called OpenBLAS in this process; None where OpenBLAS is not in its place."""
    try:
        return ctypes.c_long.in_dll(ctypes.CDLL(None), "tiny_llm_blas_calls").value
    except ValueError:
        return None


def use_one_blas_thread() -> None:
    """Keep OpenBLAS from dividing small products among threads, which takes twenty times what they do.

    Its threads wait for each other in loops that keep their cores busy.
    """
    with suppress(AttributeError):  # OpenBLAS is not in its place
        ctypes.CDLL(None).scipy_openblas_set_num_threads(1)


replace_reference_blas()
