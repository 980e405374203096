"""The hardware report: nothing private in it, no part that hangs, nothing lost, all of it readable."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from scripts.book.commands import check_command
from scripts.course import ROOT
from scripts.hardware import hardware_report as command
from scripts.hardware import running
from scripts.hardware.description import describe_machine, describe_versions
from scripts.hardware.parts import PARTS, Part
from scripts.hardware.privacy import Identity, without_paths
from scripts.hardware.report import SCHEMA, Report, Result, as_json, as_markdown, read_report, read_reports
from scripts.hardware.running import GRACE_SECONDS, run
from tests.support.commands import run as run_here

IDENTITY = Identity(
    users=frozenset({"alice", "Alice Example"}),
    hosts=frozenset({"alices-mac.local", "alices-mac", "Alice's Mac"}),
    folders=(
        ("/Users/alice/My Courses/tiny", "."),
        ("/var/folders/q7/x1y2/T", "<temp>"),
        ("/Users/alice", "<home>"),
        ("/Users/alice/Ümläut/venv", "<python>"),
    ),
)
PRINTS = "print({text!r})"


@dataclass(frozen=True)
class Planted(Part):
    """A part that runs Python code in the place of a command."""

    code: str = ""

    def to_run(self, folder: Path) -> list[str]:
        return [sys.executable, "-c", self.code]


def planted(
    code: str, name: str = "planted", share: float = 1, read: Callable[[str, Path], dict] = lambda *_: {}
) -> Planted:
    return Planted(name, "none", "none", (), share, read, code=code)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/Users/alice/My Courses/tiny/tests/test_a.py:12: error", "tests/test_a.py:12: error"),
        ("in /Users/alice/My Courses/tiny.", "in .."),
        ("file:///Users/alice/My%20Courses/tiny/book/x.html", "book/x.html"),
        ("/Users/alice/My Courses/tiny2/x", "<home> Courses/tiny2/x"),
        ("/private/var/folders/q7/x1y2/T/pytest-of-alice/a.json, line 3", "/private<temp>, line 3"),
        ("'/Users/alice/Secret Client/plan.txt'", "'<home>'"),
        ('File "/Users/alice/x.py", line 3', 'File "<home>", line 3'),
        ("/Users/alice/work/secret/x.py:7", "<home>:7"),
        ("/Users/alice/\u00dcml\u00e4ut/venv/lib/mlx/nn.py", "<python>/lib/mlx/nn.py"),
        ("/Users/alice/U\u0308mla\u0308ut/venv/lib/mlx/nn.py", "<python>/lib/mlx/nn.py"),
        ("b'/Users/alice/\\xdcml\\xe4ut/venv/bin'", "b'<python>/bin'"),
        ("file:///Users/alice/%C3%9Cml%C3%A4ut/venv/bin", "<python>/bin"),
        ("~/notes/x and ~alice/y", "<path> and <path>"),
        ("C++ compiler /usr/bin/c++", "C++ compiler <path>"),
        ("cannot open '/Volumes/Big Disk/secret/a.gguf'", "cannot open '<path>'"),
        ("file:///etc/hosts", "<path>"),
        ("alice@Alices-Mac.local:~$ and ALICES-MAC", "<user>@<host>:~$ and <host>"),
        ("Alice Example's machine is Alice's Mac", "<user>'s machine is <host>"),
        ("malice, alice_2, alice", "malice, <user>_2, <user>"),
    ],
)
def test_names_and_paths_are_taken_out(text: str, expected: str) -> None:
    assert IDENTITY.scrub(text) == expected


def test_a_folder_is_known_by_where_its_link_leads(tmp_path: Path) -> None:
    (tmp_path / "where it is").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "where it is")
    identity = Identity(frozenset(), frozenset(), ((str(tmp_path / "link"), "."),))
    assert identity.scrub(f"{tmp_path}/link/a.py {tmp_path}/where it is/b.py") == "a.py b.py"


@pytest.mark.parametrize(
    "text",
    [
        "39.8 requests/s, prefill/decode, 1/2 and 3 / 4",
        "see https://github.com/ml-explore/mlx/issues/7",
        "tests/days/test_week_2_day_3.py:50: AssertionError // at (3, 7)",
        "logits[0]: -1.25, expected +1.25; ~3 % off",
    ],
)
def test_what_is_neither_name_nor_path_stays(text: str) -> None:
    assert IDENTITY.scrub(text) == text


def test_a_planted_failure_gives_nobody_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "people" / "zoe-q"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USER", "zq")
    monkeypatch.setattr("socket.gethostname", lambda: "Zoes-Box.example.org")
    secrets = [str(ROOT), str(home), str(tmp_path), sys.prefix, sys.base_prefix, "zq", "zoe-q", "Zoes-Box"]
    said = [
        *(f"{text} '{text}/a b' {text!r}/x:3 file://{text}/y ({text})" for text in secrets),
        *(text.upper() for text in secrets[-3:]),
        f"{home}/clients/secret/x.py",
        "zoe-q@zoes-box: /opt/clients/secret and ~/clients/secret",
    ]
    read = lambda *_: {"notes": said, "rate": 3}  # noqa: E731
    part = planted(f"print('\\n'.join({said!r})); raise SystemExit(3)", read=read)
    monkeypatch.setenv("MLX_PLANTED", f"{home}/secrets,zq")
    report = command.make_report([part], time.monotonic() + 60, lambda report: None)
    (result,) = report.parts
    assert "MLX_PLANTED=<home>,<user>" in report.versions["settings"].split(", ")
    assert (result.outcome, result.results["rate"]) == ("failed", 3)
    assert result.failure.startswith("ended with exit code 3\n\n.")
    for text in (as_json(report), as_markdown(report)):
        for secret in [*secrets, "clients", "secret", str(tmp_path.parent)]:
            assert secret.lower() not in text.lower(), secret
    assert without_paths(result.failure) == result.failure


def report_of(*results: Result) -> Report:
    """A report with these parts."""
    versions = {**describe_versions(), "settings": "none"}
    return Report(SCHEMA, "2026-11-22", describe_machine(), versions, 1.5, results)


def passed(name: str = "a") -> Result:
    return Result(name, "pdm run a", "passed", 1.0, {"n": 1, "x": 2.5, "why": ["b"]}, "")


def test_a_part_that_hangs_is_stopped_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "GRACE_SECONDS", 0.5)
    file = tmp_path / "pid"
    child = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"
    code = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}])\n"
        f"open({str(file)!r}, 'w').write(str(child.pid))\n"
        "print('so far', flush=True)\n"
        f"{child}"
    )
    result = command.run_part(planted(code), 1.5, IDENTITY)
    assert result.outcome == "out of time"
    assert re.fullmatch(r"stopped after \d+ s\n\nso far", result.failure)
    assert has_ended(int(file.read_text()))


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or only waits for somebody to ask how it ended."""
    for _ in range(50):
        state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
        if not state.strip() or state.startswith("Z"):
            return True
        time.sleep(0.1)
    return False


def test_output_survives_a_grandchild_that_keeps_it_open() -> None:
    child = "import time; time.sleep(600)"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}]); print('done')"
    ended = run([sys.executable, "-c", code], 60)
    assert (ended.how, ended.exit_code, ended.output) == ("by itself", 0, "done\n")
    assert ended.seconds < 30


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise SystemExit(7)", "ended with exit code 7"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGABRT)", "ended by SIGABRT"),
        ("print('nonsense')", "its results cannot be read: no number"),
    ],
)
def test_a_part_that_fails_says_how(code: str, reason: str) -> None:
    def read(output: str, folder: Path) -> dict:
        raise ValueError("no number")

    result = command.run_part(planted(code, read=read), 60, IDENTITY)
    assert result.outcome == "failed"
    assert result.failure.splitlines()[0] == reason


def test_variables_of_a_part_are_set_and_shown() -> None:
    part = replace(planted("import os; print(os.environ['TINY_LLM_X'])"), environment={"TINY_LLM_X": "7"})
    assert part.shown == "TINY_LLM_X=7 pdm run none"
    read: Callable[[str, Path], dict] = lambda output, _: {"x": output}  # noqa: E731
    assert command.run_part(replace(part, read=read), 60, IDENTITY).results == {"x": "7\n"}


def test_only_the_end_of_a_long_output_is_kept() -> None:
    code = "print('a line\\n' * 100_000); raise SystemExit('the end')"
    result = command.run_part(planted(code), 60, IDENTITY)
    assert result.failure.endswith("a line\n\nthe end")
    assert result.failure.startswith("ended with exit code 1\n\na line\n")
    assert command.LONGEST_FAILURE - 100 < len(result.failure) < command.LONGEST_FAILURE + 100


def test_parts_share_what_is_left_and_never_take_more() -> None:
    parts = [planted("", share=share) for share in (1, 2, 3)]
    limits, left = [], 65.0
    for i in range(len(parts)):
        limits.append(command.limit_of(parts[i:], left))
        left -= limits[-1] + GRACE_SECONDS  # the worst case: it uses all and does not end when told
    assert limits[0] == 10
    assert limits == sorted(limits)
    assert left >= 0
    assert command.limit_of(parts[2:], 60) == 55
    assert command.limit_of(parts, 3) == 0


def run_command(folder: Path, parts: str, *options: str) -> "subprocess.Popen[str]":
    """The command with parts of Python code."""
    code = (
        "from tests.tools.test_hardware_report import planted\n"
        "from scripts.hardware import hardware_report as command\n"
        f"command.PARTS = [{parts}]\n"
        "command.typer.run(command.main)\n"
    )
    arguments = [sys.executable, "-c", code, "--output", str(folder), *options]
    return subprocess.Popen(
        arguments,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_children_and_keeps_what_was_done(tmp_path: Path, number: int) -> None:
    file = tmp_path / "pid"
    code = (
        f"import os, time; open({str(file)!r}, 'w').write(str(os.getpid()))\n"
        "print('so', flush=True); time.sleep(600)"
    )
    parts = f"planted('', 'first'), planted({code!r}, 'second'), planted('', 'third')"
    process = run_command(tmp_path, parts)
    while not (file.exists() and file.read_text()):
        assert process.poll() is None, "the second part has begun"
        time.sleep(0.05)
    process.send_signal(number)
    output, _ = process.communicate()
    assert process.returncode == 128 + number, output
    assert has_ended(int(file.read_text()))
    report = read_report(tmp_path / "hardware-report.json")
    assert [part.outcome for part in report.parts] == ["passed", "interrupted", "not run"]
    assert "so" in report.parts[1].failure
    assert "| third | not run | 0 |" in (tmp_path / "hardware-report.md").read_text(encoding="utf-8")


def test_the_command_reports_each_part_on_a_line_and_fails_if_one_does(tmp_path: Path) -> None:
    process = run_command(tmp_path, "planted('', 'good'), planted('1 / 0', 'bad'), planted('', 'last')")
    output, _ = process.communicate()
    assert process.returncode == 1
    assert [line.split()[:2] for line in output.splitlines()[:3]] == [
        ["good", "passed"],
        ["bad", "failed"],
        ["last", "passed"],
    ]
    assert "ZeroDivisionError" in (tmp_path / "hardware-report.md").read_text(encoding="utf-8")


def test_time_that_is_up_fails_the_rest_and_hangs_nowhere(tmp_path: Path) -> None:
    slow = "planted('import time; time.sleep(600)', '{}')"
    process = run_command(tmp_path, f"{slow.format('one')}, {slow.format('two')}", "--minutes", "0.1")
    assert process.wait() == 1
    report = read_report(tmp_path / "hardware-report.json")
    assert [part.outcome for part in report.parts] == ["out of time", "out of time"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--part", "nothing"], "error: there is no part 'nothing': choose from doctor, kernels of day 2.3"),
        (["--output", "README.md"], "error: README.md cannot take the report: File exists"),
        (["--minutes", "0"], "0.1"),
    ],
)
def test_bad_input_is_refused(options: list[str], sentence: str) -> None:
    result = run_here("scripts.hardware.hardware_report", *options)
    assert result.returncode == 2
    assert sentence in result.stderr


def test_real_parts_are_run_and_read(tmp_path: Path) -> None:
    parts = ("--part", "doctor", "--part", "demo on the CPU")
    result = run_here("scripts.hardware.hardware_report", "--output", str(tmp_path), *parts)
    assert result.returncode == 0, result.stdout + result.stderr
    report = read_report(tmp_path / "hardware-report.json")
    doctor, demo = report.parts
    assert doctor.results["ok"] >= 8
    assert demo.results["tokens/s"] > 0
    assert as_json(report) == (tmp_path / "hardware-report.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_every_part_is_a_command_of_the_course(part: Part) -> None:
    check_command(part.shown)
    with pytest.raises(ValueError, match=r"printed no|compared|tried|measured"):
        part.read("nonsense\n", ROOT / "nowhere")


def test_numbers_are_read_from_what_commands_print(tmp_path: Path) -> None:
    read = {part.name: part.read for part in PARTS}
    tests = (
        "SKIPPED [1] tests/a.py:46: needs an NVIDIA GPU (CUDA)\n1 failed, 143 passed, 2 skipped in 9.12s\n"
    )
    assert read["kernels of day 2.3"](tests, tmp_path) == {
        "failed": 1,
        "passed": 143,
        "skipped": 2,
        "skipped because": ["needs an NVIDIA GPU (CUDA)"],
    }
    served = "5 answers, 100 tokens, in 3.5 s\n"
    assert read["serve, two ranks"](served, tmp_path) == {
        "answers": 5,
        "tokens": 100,
        "seconds with its start": 3.5,
    }
    answers = "prompt 0: 36 tokens, equal\nprompt 1: 20 tokens, different\n"
    assert read["answers of mlx-lm"](answers, tmp_path) == {"answers": 2, "equal": 1, "tokens": 56}
    schedules = "20 schedules, seed 7: every request got the tokens it gets alone\n"
    assert read["schedules, week 2"](schedules, tmp_path) == {"schedules": 20, "seed": 7}
    speed = {"tokens_per_s": {"decode alone": {"tiny-llm": [3.0, 1, 2], "mlx-lm as installed": [1]}}}
    (tmp_path / "speed.json").write_text(json.dumps(speed))
    assert read["speed beside mlx-lm"]("", tmp_path) == {
        "decode alone, tiny-llm": 2,
        "decode alone, mlx-lm as installed": 1,
    }
    del speed["tokens_per_s"]["decode alone"]["tiny-llm"]
    (tmp_path / "speed.json").write_text(json.dumps(speed))
    with pytest.raises(ValueError, match="tiny-llm was not measured"):
        read["speed beside mlx-lm"]("", tmp_path)
    findings = "ok      Python 3.11\nnote    no compiler: get one\n"
    assert read["doctor"](findings, tmp_path) == {"ok": 1, "notes": ["no compiler: get one"], "problems": []}


def test_a_report_is_read_as_it_was_written(tmp_path: Path) -> None:
    failure = "ended with exit code 1\n\na | b\n````\nc"
    report = report_of(passed(), Result("b", "pdm run b", "failed", 2.0, {}, failure))
    file = tmp_path / report.file_name
    file.write_text(as_json(report), encoding="utf-8")
    assert read_report(file) == report
    text = as_markdown(report)
    assert f"`````text\n{failure}\n`````" in text
    assert "| a | passed | 1 | n: 1; x: 2.5; why: b |" in text


def change(*path: str | int, to: object) -> Callable[[dict], None]:
    """A change of one value of a report."""

    def apply(content: dict) -> None:
        inner = content
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = to

    return apply


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (change("schema", to=2), "is not a report of schema 1: run `pdm run hardware-report` again"),
        (change("more", to=1), "must have the keys schema, date, machine"),
        (lambda content: content.pop("date"), "must have the keys schema, date, machine"),
        (lambda content: content["machine"].pop("gpu"), "machine must have the keys processor, cores"),
        (change("machine", "cores", to="2"), "machine, cores: the value '2' is of the wrong type"),
        (change("machine", "cores", to=True), "machine, cores: the value True is of the wrong type"),
        (change("parts", 0, to=[]), "part 1 must have the keys name, command"),
        (change("parts", 0, "outcome", to="fine"), "the outcome 'fine' must be one of passed, failed"),
        (change("parts", 0, "outcome", to="failed"), "the text of a failure must be there if and only if"),
        (change("parts", 0, "failure", to="boom"), "the text of a failure must be there if and only if"),
        (change("parts", 0, "results", "n", to=None), "part 1, n: the value None is of the wrong type"),
        (change("parts", 0, "results", "n", to=[1]), "part 1, n: the value [1] is of the wrong type"),
        (change("versions", "compiler", to="/usr/bin/c++"), "holds a path: take it out of '/usr/bin/c++'"),
    ],
)
def test_what_is_no_report_is_refused(
    tmp_path: Path, damage: Callable[[dict], object], sentence: str
) -> None:
    content = json.loads(as_json(report_of(passed())))
    damage(content)
    file = tmp_path / "report.json"
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"report\.json") as error:
        read_report(file)
    assert sentence in str(error.value)


def test_a_file_that_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(ValueError, match=r"a\.json cannot be read"):
        read_report(tmp_path / "a.json")


def test_every_report_of_the_book_can_be_read_and_names_no_path() -> None:
    assert read_reports(ROOT / "book" / "records" / "hardware")


def test_a_report_is_named_by_machine_and_backend() -> None:
    machine = {
        "processor": "Apple M2 Pro",
        "cores": 10,
        "memory_gb": 16,
        "gpu": "Apple M2 Pro",
        "system": "macOS 15.1",
    }
    report = replace(report_of(passed()), machine=machine)
    versions = report.versions
    assert (
        replace(report, versions={**versions, "backend": "Metal"}).file_name
        == "apple-m2-pro-10-cores-metal.json"
    )
    named = replace(
        report, machine={**machine, "gpu": "NVIDIA H200"}, versions={**versions, "backend": "CUDA"}
    )
    assert named.file_name == "apple-m2-pro-10-cores-cuda-nvidia-h200.json"
