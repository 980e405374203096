"""Connections whose request never comes whole."""

import socket
import time
from collections.abc import Iterator

import pytest

from http_server.slow_heads import ImpatientProtocol
from tests.server.servers import SECONDS, app_of, on_socket

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


class VeryImpatientProtocol(ImpatientProtocol):
    head_timeout = 0.4


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with on_socket(app_of(), http=VeryImpatientProtocol) as url:
        yield url


def connection(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), SECONDS)


def received(connection: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    return b"".join(iter(lambda: connection.recv(4096), b""))


@pytest.mark.parametrize("sent", [b"", b"GET /health", HEALTH])
def test_a_head_that_does_not_arrive(url: str, sent: bytes) -> None:
    with connection(url) as slow:
        slow.sendall(sent)
        assert received(slow) == b""


def test_a_head_that_comes_byte_by_byte(url: str) -> None:
    with connection(url) as slow:
        start = time.monotonic()
        try:
            for byte in HEALTH * 20:
                slow.sendall(bytes([byte]))
                time.sleep(0.02)
        except OSError:
            pass
        assert time.monotonic() - start < 20 * len(HEALTH) * 0.02


def test_a_second_head_that_does_not_arrive(url: str) -> None:
    with connection(url) as slow:
        slow.sendall(HEALTH + b"\r\n")
        assert slow.recv(4096).startswith(b"HTTP/1.1 200 ")
        slow.sendall(HEALTH)
        assert b"200" not in received(slow)


def test_the_rest_may_take_longer(url: str) -> None:
    with connection(url) as slow:
        slow.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 14\r\n\r\n")
        time.sleep(1)
        slow.sendall(b'{"prompt":"A"}')
        assert slow.recv(4096).startswith(b"HTTP/1.1 200 ")
