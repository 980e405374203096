"""The lock file serves every machine the course names, and set-up installs what it says."""

import itertools
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename

from scripts import setup
from scripts.course import ROOT
from scripts.machine import SUPPORTED_PYTHONS
from scripts.setup import LOCK_FILE, load_toml, locked_requirements

LOCK = load_toml(LOCK_FILE.read_text(encoding="utf-8"))
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
# Marker values, and what the platform part of a wheel's name may look like.
PLATFORMS = {
    "linux-x86_64": (
        {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"},
        "linux.*x86_64",
    ),
    "linux-arm64": (
        {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "aarch64"},
        "linux.*aarch64",
    ),
    "macos-arm64": (
        {"sys_platform": "darwin", "platform_system": "Darwin", "platform_machine": "arm64"},
        "macosx_.*(arm64|universal2)",
    ),
}


def fits(file: str, python: str, platform_pattern: str) -> bool:
    """Whether a wheel runs on that Python and platform."""
    if not file.endswith(".whl"):
        return False
    version = python.replace(".", "")
    for tag in parse_wheel_filename(file)[3]:
        is_stable_abi = tag.abi == "abi3" and int(tag.interpreter[3:] or 0) <= int(version[1:])
        right_python = tag.interpreter in (f"cp{version}", "py3", "py2.py3") or is_stable_abi
        if right_python and (tag.platform == "any" or re.search(platform_pattern, tag.platform)):
            return True
    return False


@pytest.mark.parametrize(("platform", "python"), list(itertools.product(PLATFORMS, PYTHONS)))
def test_every_locked_package_has_a_wheel(platform: str, python: str) -> None:
    values, pattern = PLATFORMS[platform]
    environment = {"python_version": python, "python_full_version": f"{python}.4", **values}
    needed = [
        package
        for package in LOCK["package"]
        if {"default", "cpu", "dev", "book", "pages", "routers"} & set(package["groups"])
        and ("marker" not in package or Marker(package["marker"]).evaluate(environment))
    ]
    names = [package["name"] for package in needed]
    assert len(names) == len(set(names))
    assert {"mlx", "mlx-lm", "numpy", "pytest", "rich"} <= set(names)
    assert ("mlx-cpu" in names) == (values["sys_platform"] == "linux")
    assert ("mlx-metal" in names) == (values["sys_platform"] == "darwin")
    without = [
        p["name"] for p in needed if not any(fits(file["file"], python, pattern) for file in p["files"])
    ]
    assert without == []


def test_the_lock_file_names_no_address_and_no_torch() -> None:
    text = LOCK_FILE.read_text(encoding="utf-8")
    assert "://" not in text
    assert "torch" not in {package["name"] for package in LOCK["package"]}


def test_the_lock_file_satisfies_the_project() -> None:
    project = load_toml((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [*project["project"]["dependencies"], *itertools.chain(*project["dependency-groups"].values())]
    for requirement in map(Requirement, wanted):
        versions = [package["version"] for package in LOCK["package"] if package["name"] == requirement.name]
        assert any(requirement.specifier.contains(version) for version in versions), str(requirement)


def test_requirements_are_pinned_by_hash() -> None:
    for line in locked_requirements({"default", "cpu"}):
        assert re.match(r"[\w.-]+==\S+( ; .+?)?( --hash=sha256:[0-9a-f]{64})+$", line), line


def test_only_an_engine_of_the_benchmark_is_compiled() -> None:
    assert setup.packages_without_wheel({"default", "cpu", "cuda", "dev", "book", "pages"}) == []
    assert setup.packages_without_wheel({"engines"}) == ["llama-cpp-python"]


def test_cuda_is_chosen_by_its_group() -> None:
    names = [line.split("==")[0] for line in locked_requirements({"default", "cuda"})]
    assert "mlx-cuda-13" in names
    assert "mlx-cpu" not in names


SetUp = Callable[..., list[set[str]]]


@pytest.fixture
def stamp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Notes what is installed in an environment that no set-up has touched."""
    monkeypatch.setattr(setup, "STAMP_FILE", tmp_path / "stamp.txt")
    monkeypatch.setattr(sys, "argv", ["setup.py"])
    monkeypatch.delenv("TINY_LLM_BACKEND", raising=False)
    return tmp_path / "stamp.txt"


@pytest.fixture
def set_up(stamp: Path, monkeypatch: pytest.MonkeyPatch) -> SetUp:
    """Runs set-up with some options; returns the groups of each installation that it would start."""

    def run(*options: str) -> list[set[str]]:
        calls: list[set[str]] = []
        monkeypatch.setattr(setup, "install", calls.append)
        monkeypatch.setattr(sys, "argv", ["setup.py", *options])
        setup.main()
        return calls

    return run


@pytest.mark.parametrize(
    ("options", "groups"),
    [(("--dev",), {"dev"}), (("--group", "book", "--group", "pages"), {"book", "pages"})],
)
def test_groups_are_added_and_kept_and_nothing_is_installed_twice(
    options: tuple[str, ...], groups: set[str], set_up: SetUp
) -> None:
    assert [set_up(), set_up()] == [[{"default", "cpu"}], []]
    assert set_up("--group", "engines") == [{"default", "cpu", "engines"}]
    assert [set_up(*options), set_up()] == [[{"default", "cpu", "engines", *groups}], []]


def test_a_module_is_run_once_its_packages_are_there(set_up: SetUp, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda program, arguments: ran.append(arguments))
    monkeypatch.setattr(setup, "run_module", lambda *arguments: ran.append([*arguments]))
    module = ["scripts.book", "--port", "3", "-m", "--", "-k"]
    assert [set_up("--group", "book", "-m", *module) for _ in range(2)] == [[{"default", "cpu", "book"}], []]
    assert ran == [[sys.executable, "-m", *module], module]  # anew after an installation, else at once


def test_a_module_runs_in_the_same_process_as_python_runs_it(tmp_path: Path) -> None:
    (tmp_path / "shown.py").write_text(
        "import sys\nmain = sys.modules['__main__']\n"
        "print(sys.argv[1:], sys.path[0], __name__, main.__file__ == __file__)\nsys.exit(7)\n"
    )
    program = f"import sys; from scripts import setup; setup.ROOT = {str(tmp_path)!r}; "
    result = subprocess.run(
        [sys.executable, "-c", f"{program}setup.run_module('shown', '-m', 'x', '--')"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (result.stdout, result.returncode) == (f"['-m', 'x', '--'] {tmp_path} __main__ True\n", 7)


def test_no_module_is_run_where_set_up_failed(stamp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.execv", lambda program, arguments: pytest.fail("ran"))
    monkeypatch.setattr(setup, "run_with_counter", lambda command: 1)
    monkeypatch.setattr(setup, "ensure_pip", lambda: None)
    monkeypatch.setattr(sys, "argv", ["setup.py", "-m", "scripts.run.demo"])
    with pytest.raises(SystemExit, match="The installation stopped"):
        setup.main()


def test_every_command_but_doctor_sets_up_first() -> None:
    entries = load_toml((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pdm"]["scripts"]
    commands = {name: entry["cmd"] for name, entry in entries.items() if name != "check"}
    without = [
        name for name, command in commands.items() if not command.startswith("python scripts/setup.py")
    ]
    assert without == ["doctor"]
    assert entries["check"]["composite"][0].startswith("setup ")


def test_a_new_lock_file_is_installed(set_up: SetUp, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_up()
    other = tmp_path / "pdm.lock"
    other.write_text(LOCK_FILE.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    monkeypatch.setattr(setup, "LOCK_FILE", other)
    assert set_up() == [{"default", "cpu"}]


def test_a_failed_installation_is_not_taken_for_done(stamp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "run_with_counter", lambda command: 1)
    monkeypatch.setattr(setup, "ensure_pip", lambda: None)
    with pytest.raises(SystemExit, match="The installation stopped"):
        setup.main()
    assert not stamp.exists()


def test_the_backend_of_an_environment_is_not_changed(set_up: SetUp, monkeypatch: pytest.MonkeyPatch) -> None:
    set_up()
    monkeypatch.setenv("TINY_LLM_BACKEND", "cuda")
    with pytest.raises(SystemExit, match="This environment has MLX's cpu backend"):
        setup.main()
    monkeypatch.setenv("TINY_LLM_BACKEND", "tpu")
    with pytest.raises(SystemExit, match="TINY_LLM_BACKEND is 'tpu': set it to one of cpu, cuda"):
        setup.main()


def test_kernels_are_compiled_once_the_packages_are_there(
    stamp: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup, "run_with_counter", lambda command: 0)
    monkeypatch.setenv("TINY_LLM_KERNELS", "own")
    monkeypatch.setenv("TINY_LLM_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    setup.install({"default", "cpu"})
    lines = capfd.readouterr().err.splitlines()
    assert lines[1] == "Compiling the kernels, once."
    assert any("there is no C++ compiler here" in line for line in lines[2:])
    assert not any("Traceback" in line for line in lines)


def test_the_dev_container_opens_the_course_ready_to_use() -> None:
    text = (ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8")
    container = json.loads(text)
    version = re.fullmatch(r".*/python:3\.(\d+)-bookworm", container["image"])  # glibc 2.36
    assert version is not None
    oldest, newest = SUPPORTED_PYTHONS
    assert oldest <= (3, int(version[1])) <= newest
    assert "g++" in container["onCreateCommand"]
    scripts = load_toml((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pdm"]["scripts"]
    commands = re.findall(r"python -m pdm run (\w+)", container["postCreateCommand"])
    assert commands == ["setup", "doctor"]
    assert set(commands) <= set(scripts)
    assert container["waitFor"] == "postCreateCommand"
