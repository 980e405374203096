"""What pip knows: where a wheel is, and how it reaches the index."""

import ast
import importlib.util
import json
import os
import ssl
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx2

from scripts.download import FetchError


def run_pip(*arguments: str) -> str:
    """Run pip and return what it prints.

    Raises:
        FetchError: there is no pip, or it failed.
    """
    if importlib.util.find_spec("pip") is None:
        raise FetchError("pip is not in this environment: run `python -m ensurepip` in it first")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        reason = (result.stderr.strip().splitlines() or ["it said nothing"])[-1].removeprefix("ERROR: ")
        raise FetchError(
            f"pip {arguments[0]} failed ({reason}): check the network, or pass a wheel you have with --wheel"
        )
    return result.stdout


def find_wheel(requirement: str) -> str:
    """Ask pip where the wheel is, on the index or in the folder that the user set it up for."""
    just_look = ["--dry-run", "--ignore-installed", "--no-deps", "--only-binary=:all:", "--retries=1"]
    # fast-deps: where an index offers no separate metadata, pip would fetch all 93 MB to read it.
    as_json = ["--quiet", "--report=-", "--use-feature=fast-deps"]
    report = run_pip("install", *just_look, *as_json, requirement)
    return str(json.loads(report)["install"][0]["download_info"]["url"])


def local_path(url: str) -> Path | None:
    """The path that a file: address means, or None for any other address."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def pip_settings() -> dict[str, str]:
    """pip's own settings, from its files and from PIP_ variables, by name without the section."""
    settings = {}
    lines = run_pip("config", "list").splitlines()
    for section in ("global", "install", ":env:"):  # as pip does: a later one wins
        for line in lines:
            key, _, value = line.partition("=")
            if key.startswith(f"{section}."):
                settings[key.removeprefix(f"{section}.")] = str(ast.literal_eval(value))
    return settings


def http_client() -> httpx2.Client:
    """A client that trusts the certificates and takes the proxy that pip would.

    Raises:
        FetchError: the file of certificates cannot be read.
    """
    settings = pip_settings()
    bundle = settings.get("cert") or os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
    # True leaves it to the client: SSL_CERT_FILE, or else the system's certificates.
    context: ssl.SSLContext | bool = True
    if bundle:
        is_folder = Path(bundle).is_dir()
        try:
            context = ssl.create_default_context(
                cafile=None if is_folder else bundle, capath=bundle if is_folder else None
            )
        except OSError as error:
            raise FetchError(f"the certificates in {bundle} cannot be read: {error}") from error
    timeout = httpx2.Timeout(30, connect=15)
    return httpx2.Client(verify=context, proxy=settings.get("proxy"), timeout=timeout, follow_redirects=True)
