"""What starts replicas and a router: what it says when one ends, how it ends, and that none is left.

Small programs take the places of servers and routers. tests/clients has the real ones.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from http_server.kv_events_config import parse_kv_events_config
from scripts.run import ranks, replicas
from scripts.run.ranks import free_ports
from scripts.run.replicas import LOCAL, REPLICA, TETHERED, Member, run_members
from tests.support.commands import run
from tests.tools.test_run_ranks import is_alive

ROOT = Path(__file__).parents[2]
SECONDS = 300  # half of what a process that is left over sleeps
SERVE = "scripts.run.serve"
READY = "all take requests"
PREAMBLE = """
import os, signal, socket, sys, threading, time
from pathlib import Path
from scripts.run.child_process import end_with_launcher
folder, port, launcher = Path(sys.argv[1]), int(sys.argv[2]), os.getppid()
def note(name):
    (folder / name).touch()
def wait_for(*texts):
    while not all(text in (folder / "log").read_text() for text in texts):
        time.sleep(0.01)
def forever():
    time.sleep(600)
def answer(server):
    while True:
        connection, _ = server.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n")
def serve():
    server = socket.create_server(("127.0.0.1", port))
    threading.Thread(target=answer, args=[server], daemon=True).start()
"""
LASTING = "serve()\nforever()"


def run_all(folder: Path, *codes: str, timeout: float = 0) -> tuple[int, list[str]]:
    """The exit code and the log of replicas that run these codes, and of a router that runs the last one."""
    plan = []
    names = [*(f"replica {number}" for number in range(1, len(codes))), "router"]
    for name, code, port in zip(names, codes, free_ports(len(codes)), strict=True):
        program = PREAMBLE + ("" if name == "router" else "end_with_launcher()\n") + code
        tether = [sys.executable, "-I", str(TETHERED)] if name == "router" else []
        command = [*tether, sys.executable, "-c", program, str(folder), str(port)]
        plan.append(Member(name, command, os.environ, LOCAL, port, "/ready"))
    log = folder / "log"
    with log.open("w", buffering=1) as out, redirect_stderr(out):
        exit_code = run_members(plan, READY, {}, timeout)
    return exit_code, log.read_text().splitlines()


@pytest.mark.parametrize(
    ("end", "how"),
    [
        ("sys.exit(3)", "ended with exit code 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "was ended by SIGKILL"),
    ],
)
def test_the_others_go_on_without_a_replica_but_not_without_a_router(
    end: str, how: str, tmp_path: Path
) -> None:
    losing = f"serve()\nwait_for({READY!r})\n{end}"
    routing = "serve()\nwait_for('the others go on')\nsys.exit(5)"
    assert run_all(tmp_path, losing, LASTING, routing) == (
        1,
        [
            READY,
            f"error: replica 1 {how}; the others go on",
            "error: router ended with exit code 5; all were stopped",
        ],
    )


def test_without_replicas_the_router_is_stopped(tmp_path: Path) -> None:
    first = f"serve()\nwait_for({READY!r})\nsys.exit(3)"
    second = "serve()\nwait_for('the others go on')\nsys.exit(0)"
    assert run_all(tmp_path, first, second, LASTING) == (
        1,
        [
            READY,
            "error: replica 1 ended with exit code 3; the others go on",
            "error: replica 2 ended with exit code 0; all were stopped",
        ],
    )


STARTED = "note('started')\n"


@pytest.mark.parametrize(
    ("codes", "exit_code", "lines"),
    [
        (["print('error: a reason')\nsys.exit(2)", STARTED, STARTED], 2, ["replica 1: error: a reason"]),
        ([LASTING, "sys.exit(1)", STARTED], 1, ["error: replica 2 ended with exit code 1; all were stopped"]),
        ([LASTING, LASTING, "sys.exit(4)"], 1, ["error: router ended with exit code 4; all were stopped"]),
        (["os.kill(launcher, signal.SIGTERM)\nforever()", STARTED, STARTED], 0, []),
    ],
)
def test_nothing_more_starts_after_a_failure_or_a_signal(
    codes: list[str], exit_code: int, lines: list[str], tmp_path: Path
) -> None:
    assert run_all(tmp_path, *codes) == (exit_code, lines)
    assert not (tmp_path / "started").exists()


def test_after_a_signal_the_router_ends_last(tmp_path: Path) -> None:
    ending = (
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.1), note(f'ended{port}'), sys.exit(0)))\n"
    )
    sending = f"serve()\nwait_for({READY!r})\nos.kill(launcher, signal.SIGINT)\nforever()"
    count = "print(len([*folder.glob('ended*')]), 'have ended', flush=True)"
    routing = f"signal.signal(signal.SIGTERM, lambda *_: ({count}, sys.exit(0)))\n{LASTING}"
    result = run_all(tmp_path, ending + sending, ending + LASTING, routing, timeout=SECONDS)
    assert result == (0, [READY, "router: 2 have ended"])


STUBBORN = "signal.signal(signal.SIGTERM, lambda *_: print('goes on', flush=True))\nserve()\n"


def test_all_end_at_once_after_a_second_signal(tmp_path: Path) -> None:
    sending = f"""
wait_for({READY!r})
os.kill(launcher, signal.SIGINT)
wait_for("replica 1: goes on", "replica 2: goes on")
os.kill(launcher, signal.SIGTERM)
forever()
"""
    code, lines = run_all(tmp_path, STUBBORN + sending, STUBBORN + "forever()", LASTING, timeout=SECONDS)
    assert code == 128 + signal.SIGTERM
    assert sorted(lines) == [READY, "replica 1: goes on", "replica 2: goes on"]


def test_a_replica_that_does_not_end_in_time_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "GRACE_SECONDS", 0.5)
    sending = f"serve()\nwait_for({READY!r})\nos.kill(launcher, signal.SIGINT)\nforever()"
    assert run_all(tmp_path, sending, STUBBORN + "forever()", LASTING)[0] == 0


LAUNCH = """
import sys
from pathlib import Path
from tests.tools.test_run_replicas import run_all
run_all(Path(sys.argv[1]), *sys.argv[2:])
"""


def test_all_end_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    codes = ["note(f'pid{os.getpid()}')\n" + LASTING] * 3
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCH, str(tmp_path), *codes], cwd=ROOT)
    end = time.monotonic() + SECONDS
    log = tmp_path / "log"
    while not log.exists() or READY not in log.read_text():
        assert time.monotonic() < end
        time.sleep(0.01)
    launcher.kill()
    launcher.wait()
    pids = [int(path.name[3:]) for path in tmp_path.glob("pid*")]
    assert len(pids) == 3
    while any(map(is_alive, pids)):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_router_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sglang_router", None)
    result = run(SERVE, "--replicas", "2", "--router", "sglang", "--port", "0")
    assert result.returncode == 2
    assert result.stderr == "error: sglang-router is not installed: run `pdm run setup --group routers`\n"


EVENTS = '{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:%d"}'


@pytest.mark.parametrize(("router", "policy"), [("vllm", "kv_aware"), ("sglang", "cache_aware")])
def test_each_replica_publishes_events_and_vllm_router_follows_them(
    router: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[Sequence[Member]] = []

    def run_plan(plan: Sequence[Member], *_: object) -> int:
        plans.append(plan)
        return 0

    monkeypatch.setattr(replicas, "require_router", lambda _: None)
    monkeypatch.setattr(replicas, "run_members", run_plan)
    options = ["--replicas", "2", "--router", router, "--port", "0", "--kv-events-config", EVENTS % 5560]
    assert run(SERVE, *options).returncode == 0
    *servers, front = plans[0]
    followed = [word for word in front.command if "=tcp://" in word]
    told = []
    for number, server in enumerate(servers):
        *_, option, value = server.command
        config = parse_kv_events_config(value)
        assert option == "--kv-events-config"
        assert config.is_on
        assert config.endpoint == f"tcp://*:{5557 + number}"
        assert config.replay_endpoint == f"tcp://*:{5560 + number}"
        told += [f"http://{LOCAL}:{server.port}=tcp://{LOCAL}:{port + number}" for port in (5557, 5560)]
    assert followed == (told if router == "vllm" else [])
    assert front.command[front.command.index("--policy") + 1] == policy


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--router", "sglang", "--kv-events-config", EVENTS % 5560], "needs --router vllm"),
        (["--router", "vllm"], "and --kv-events-config with an endpoint at which the servers listen"),
        (["--router", "vllm", "--kv-events-config", EVENTS.replace("tcp://*", "ipc://file") % 1], "for TCP"),
        (["--router", "vllm", "--kv-events-config", EVENTS.replace("*", "router") % 5560], "for TCP"),
        (["--router", "vllm", "--kv-events-config", EVENTS % 5558], "put the two at least 2 apart"),
    ],
)
def test_events_that_a_router_cannot_follow(
    options: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "require_router", lambda _: None)
    result = run(SERVE, "--replicas", "2", "--port", "0", "--router-policy", "kv_aware", *options)
    assert result.returncode == 2
    assert sentence in result.stderr


def test_ranks_are_passed_on_to_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[Sequence[Member]] = []
    calls: list[tuple[Sequence[str], int]] = []

    def run_plan(plan: Sequence[Member], *_: object) -> int:
        plans.append(plan)
        return 0

    def run_command(command: Sequence[str], num_ranks: int) -> int:
        calls.append((command, num_ranks))
        return 0

    monkeypatch.delenv("TINY_LLM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    monkeypatch.setattr(replicas, "require_router", lambda _: None)
    monkeypatch.setattr(replicas, "run_members", run_plan)
    monkeypatch.setattr(ranks, "run_ranks", run_command)
    assert run(SERVE, "--replicas", "2", "--ranks", "2", "--port", "0").returncode == 0
    assert not calls
    for number, replica in enumerate(plans[0][:-1], 1):
        assert replica.env["TINY_LLM_THREADS"] == "3"
        monkeypatch.setenv(REPLICA, replica.env[REPLICA])
        program = list(replica.command)
        assert program[:3] == [sys.executable, "-m", SERVE]
        assert run(SERVE, *program[3:]).returncode == 0
        assert (replica.env[REPLICA], calls.pop()) == (str(number), (program, 2))
    assert len(plans) == 1
