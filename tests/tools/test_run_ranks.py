"""What starts the ranks of a run: their environment, whose fault an end is, and that none is left."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts.run import ranks
from scripts.run.ranks import LOST_EXIT_CODE, run_ranks

ROOT = Path(__file__).parents[2]
SECONDS = 300  # half of what a rank that is left over sleeps
PREAMBLE = """
import os, signal, sys, time
from pathlib import Path
rank, folder = int(os.environ["MLX_RANK"]), Path(sys.argv[1])
def note(name):
    (folder / name).touch()
def wait_for(name):
    while not (folder / name).exists():
        time.sleep(0.01)
def forever():
    time.sleep(600)
"""


def command(folder: Path, *codes: str) -> list[str]:
    """Ranks that run these codes, by their numbers, and agree through files in a folder."""
    body = "\n".join(
        f"if rank == {rank}:\n" + "\n".join(f"    {line}" for line in code.splitlines())
        for rank, code in enumerate(codes)
    )
    return [sys.executable, "-c", PREAMBLE + body, str(folder)]


@pytest.mark.parametrize(
    ("codes", "exit_code", "error"),
    [
        (["sys.exit(0)", "sys.exit(0)"], 0, ""),
        (["sys.exit(0)", "sys.exit(0)", "sys.exit(0)"], 0, ""),
        (["forever()", "sys.exit(3)"], 1, "error: rank 1 ended with exit code 3; all ranks were stopped\n"),
        (["sys.exit(1)", "forever()"], 1, "error: rank 0 ended with exit code 1; all ranks were stopped\n"),
        (
            ["forever()", "forever()", "os.kill(os.getpid(), signal.SIGKILL)"],
            1,
            "error: rank 2 was ended by SIGKILL; all ranks were stopped\n",
        ),
        (["sys.exit(2)", "forever()"], 2, ""),
        (["forever()", "sys.exit(2)"], 2, ""),
        (["sys.exit(2)", f"sys.exit({LOST_EXIT_CODE})"], 2, ""),
        (["sys.exit(0)", f"sys.exit({LOST_EXIT_CODE})"], 0, ""),
    ],
)
def test_exit_codes(
    codes: list[str], exit_code: int, error: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_ranks(command(tmp_path, *codes), len(codes)) == exit_code
    assert capfd.readouterr().err == error


def test_a_rank_that_lost_another_is_not_to_blame(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lost = f'note("lost")\nsys.exit({LOST_EXIT_CODE})'
    failing = 'wait_for("lost")\ntime.sleep(0.2)\nsys.exit(3)'  # so the other one is seen first
    assert run_ranks(command(tmp_path, lost, failing), 2) == 1
    assert capfd.readouterr().err == "error: rank 1 ended with exit code 3; all ranks were stopped\n"


def test_ranks_that_only_lost_others(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "CAUSE_SECONDS", 0.1)
    assert run_ranks(command(tmp_path, f"sys.exit({LOST_EXIT_CODE})", "forever()"), 2) == 1
    assert capfd.readouterr().err == "error: rank 0 lost another rank; all ranks were stopped\n"


def test_a_rank_that_ignores_sigterm_is_killed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "STOP_SECONDS", 0.1)
    ignoring = 'signal.signal(signal.SIGTERM, signal.SIG_IGN)\nnote("ignores")\nforever()'
    assert run_ranks(command(tmp_path, 'wait_for("ignores")\nsys.exit(1)', ignoring), 2) == 1
    sentence = "rank 1 did not react any more and was killed, after rank 0 ended with exit code 1"
    assert capfd.readouterr().err == f"error: {sentence}\n"


def test_a_rank_that_stays_after_the_end_is_killed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "GRACE_SECONDS", 0.1)
    assert run_ranks(command(tmp_path, "sys.exit(0)", "forever()"), 2) == 1
    assert capfd.readouterr().err == "error: rank 1 did not react any more and was killed\n"


def test_a_rank_that_needs_a_second_signal_has_reacted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    exiting_later = "lambda number, _: os._exit(143) if received else received.append(number)"
    draining = f'received = []\nsignal.signal(signal.SIGTERM, {exiting_later})\nnote("drains")\nforever()'
    assert run_ranks(command(tmp_path, draining, 'wait_for("drains")\nsys.exit(3)'), 2) == 1
    assert capfd.readouterr().err == "error: rank 1 ended with exit code 3; all ranks were stopped\n"


@pytest.mark.parametrize("threads", [None, "7"])
def test_the_environment(threads: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if threads is None:
        monkeypatch.delenv("TINY_LLM_THREADS", raising=False)
    else:
        monkeypatch.setenv("TINY_LLM_THREADS", threads)
    monkeypatch.setenv("OWN", "own")
    code = """
import json
hosts = json.loads(Path(os.environ["MLX_HOSTFILE"]).read_text())
seen = [hosts, os.environ["TINY_LLM_THREADS"], os.environ["OWN"]]
(folder / f"{rank}.json").write_text(json.dumps(seen))
""".strip()
    assert run_ranks(command(tmp_path, code, code, code), 3) == 0
    seen = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    assert seen[0] == seen[1] == seen[2]
    hosts, own_threads, own = seen[0]
    assert own == "own"
    assert own_threads == (threads or str(max(1, (os.cpu_count() or 1) // 3)))
    addresses = [host.rpartition(":") for (host,) in hosts]
    assert [host for host, _, _ in addresses] == ["127.0.0.1"] * 3
    assert len({port for _, _, port in addresses}) == 3


def test_rank_0_can_wake_each_other_rank(tmp_path: Path) -> None:
    """And a pipe ends with rank 0: no other process has its end."""
    pipes = 'pipes = [int(each) for each in os.environ["TINY_LLM_WAKE_PIPES"].split(",")]\n'
    waking = pipes + "for number, each in enumerate(pipes): os.write(each, bytes([number + 1]))"
    woken = pipes + 'assert [os.read(pipes[0], 1) for _ in range(2)] == [bytes([rank]), b""]'
    assert run_ranks(command(tmp_path, waking, woken, woken), 3) == 0


RUN = """
import signal, sys
from scripts.run.ranks import run_ranks
signal.signal(signal.SIGHUP, getattr(signal, sys.argv[1]))
sys.exit(run_ranks(sys.argv[2:], 2))
"""


def sent_to_parent(folder: Path, sent: list[signal.Signals], hangup: str, *codes: str) -> tuple[int, str]:
    """Exit code and errors of a process that runs ranks and gets signals, once rank 0 has noted "ready"."""
    parent = subprocess.Popen(
        [sys.executable, "-c", RUN, hangup, *command(folder, *codes)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while not (folder / "ready").exists():
            assert parent.poll() is None
            time.sleep(0.01)
        for number in sent:
            parent.send_signal(number)
        (folder / "sent").touch()
        _, errors = parent.communicate(timeout=SECONDS)
        return parent.returncode, errors
    finally:
        parent.kill()
        parent.wait()


@pytest.mark.parametrize(
    ("handler", "exit_code"),
    [("sys.exit(0)", 0), ("os._exit(128 + number)", 128), ("os._exit(5)", 1), (None, 128)],
)
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_go_to_rank_0(
    sent: signal.Signals, handler: str | None, exit_code: int, tmp_path: Path
) -> None:
    handling = f"def handle(number, frame):\n    {handler}\n" if handler else "handle = signal.SIG_DFL\n"
    leading = f'{handling}signal.signal({int(sent)}, handle)\nwait_for("1")\nnote("ready")\nforever()'
    following = f'signal.signal({int(sent)}, lambda *_: note("wrong"))\nnote("1")\nwait_for("sent")\n'
    following += "" if exit_code == 0 else "signal.signal(signal.SIGTERM, signal.SIG_DFL)\nforever()"
    result = sent_to_parent(tmp_path, [sent], "SIG_DFL", leading, following)
    failed = "error: rank 0 ended with exit code 5; all ranks were stopped\n"
    error = {1: failed, 128: "interrupted\n"}.get(exit_code, "")
    assert result == (128 + sent if exit_code == 128 else exit_code, error)
    if exit_code == 0:  # otherwise it is asked to end
        assert not (tmp_path / "wrong").exists()


def test_an_ignored_hangup_stays_ignored(tmp_path: Path) -> None:
    leading = """
signal.signal(signal.SIGHUP, lambda *_: note("wrong"))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
note("ready")
forever()
""".strip()
    sent = [signal.SIGHUP, signal.SIGTERM]
    assert sent_to_parent(tmp_path, sent, "SIG_IGN", leading, 'wait_for("sent")') == (0, "")
    assert not (tmp_path / "wrong").exists()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or ") Z " not in status.read_text()


@pytest.mark.parametrize("is_linux", [True, False], ids=["by the system", "by a pipe"])
def test_ranks_end_with_a_launcher_that_is_killed(is_linux: bool, tmp_path: Path) -> None:
    body = [
        "from scripts.run.child_process import end_with_launcher",
        "note(f'pid{os.getpid()}')",
        "" if is_linux else "sys.platform = 'other'",
        "end_with_launcher()",
        "forever()",
    ]
    rank = [sys.executable, "-c", "\n".join([PREAMBLE, *body]), str(tmp_path)]
    code = f"from scripts.run.ranks import run_ranks; run_ranks({rank!r}, 2)"
    launcher = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    end = time.monotonic() + SECONDS
    while len(pids := [int(path.name[3:]) for path in tmp_path.glob("pid*")]) < 2:
        assert time.monotonic() < end
        time.sleep(0.01)
    launcher.kill()
    launcher.wait()
    while any(map(is_alive, pids)):
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="this system doesn't tell whether a process is stopped")
@pytest.mark.parametrize("stopped", [0, 1])
def test_a_stopped_rank_is_named_soon(
    stopped: int, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "STOPPED_SECONDS", 0.2)
    codes = ["forever()", "forever()"]
    codes[stopped] = "os.kill(os.getpid(), signal.SIGSTOP)"
    assert run_ranks(command(tmp_path, *codes), 2) == 1
    assert capfd.readouterr().err == f"error: rank {stopped} was stopped by a signal; all ranks were ended\n"


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="this system doesn't tell whether a process is stopped")
def test_a_rank_that_goes_on_is_not_to_blame(tmp_path: Path) -> None:
    halt = (
        "child = os.fork()\n"
        "if child == 0:\n"
        "    time.sleep(0.5)\n"
        "    os.kill(os.getppid(), signal.SIGCONT)\n"
        "    os._exit(0)\n"
        "os.kill(os.getpid(), signal.SIGSTOP)\n"
        "note('went on')"
    )
    assert run_ranks(command(tmp_path, halt, "wait_for('went on')"), 2) == 0


def test_what_mlx_says_of_each_socket_is_left_out(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    texts = ("[ring] Socket 3 was closed by the peer", "one", "[ring] two")
    code = "\n".join(f"print({text!r}, file=sys.stderr)" for text in texts)
    assert run_ranks(command(tmp_path, code, "pass"), 2) == 0
    assert capfd.readouterr().err == "one\n[ring] two\n"
