"""Pages of other websites: which may use the server, whatever it answers."""

import json
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from http_server.config import ServerConfig
from tests.server.servers import MODEL, app_of, client_of, in_memory
from tiny_llm import SchedulerConfig

ALLOWED, FOREIGN = "https://example.org", "https://example.com"
ORIGIN, METHOD, HEADERS = "Origin", "Access-Control-Request-Method", "Access-Control-Request-Headers"
ALLOW = "access-control-allow-origin"
COMPLETIONS = "/v1/completions"
BODY = {"model": MODEL, "prompt": "A", "max_tokens": 3}
KEY = {"Authorization": "Bearer k"}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with in_memory(app_of(api_key="k", allowed_origins=(ALLOWED,), max_num_queued_reqs=0)) as client:
        yield client


def preflight(client: TestClient, origin: str, **headers: str) -> tuple[int, str | None]:
    asked = {ORIGIN: origin, METHOD: "POST", HEADERS: "authorization, content-type, x-stainless-os"}
    response = client.options(COMPLETIONS, headers=asked | headers)
    return response.status_code, response.headers.get(ALLOW)


def test_a_preflight_needs_no_key(client: TestClient) -> None:
    assert preflight(client, ALLOWED) == (200, ALLOWED)
    assert preflight(client, FOREIGN) == (400, None)
    assert preflight(client, ALLOWED, **{"Access-Control-Request-Private-Network": "true"}) == (200, ALLOWED)
    assert preflight(client, ALLOWED, **{METHOD: "DELETE"})[0] == 400


def test_other_requests_need_the_key_whatever_their_origin(client: TestClient) -> None:
    for method in ("POST", "OPTIONS"):
        assert client.request(method, COMPLETIONS, headers={ORIGIN: ALLOWED}).status_code == 401
    assert client.post(COMPLETIONS, json=BODY).status_code == 401


@pytest.mark.parametrize("stream", [False, True])
def test_responses_may_be_read_by_allowed_pages_only(client: TestClient, stream: bool) -> None:
    for origin, expected in ((ALLOWED, ALLOWED), (FOREIGN, None)):
        response = client.post(COMPLETIONS, json=BODY | {"stream": stream}, headers=KEY | {ORIGIN: origin})
        assert response.status_code == 200
        assert response.headers.get(ALLOW) == expected
        assert "Origin" in response.headers["vary"]


@pytest.mark.parametrize(
    ("status", "path", "body", "headers"),
    [
        (401, COMPLETIONS, BODY, {}),
        (404, "/nowhere", BODY, KEY),
        (404, COMPLETIONS, BODY | {"model": "other"}, KEY),
        (400, COMPLETIONS, BODY | {"prompt": 5}, KEY),
        (405, "/health", BODY, KEY),
    ],
)
def test_errors_may_be_read_too(
    client: TestClient, status: int, path: str, body: dict[str, object], headers: dict[str, str]
) -> None:
    response = client.post(path, json=body, headers=headers | {ORIGIN: ALLOWED})
    assert response.status_code == status
    assert response.headers[ALLOW] == ALLOWED


def test_a_page_may_read_when_to_come_back(client: TestClient) -> None:
    admission = client_of(client.app).admission  # type: ignore[arg-type]
    with admission.reserve(admission.max_num_reqs):
        response = client.post(COMPLETIONS, json=BODY, headers=KEY | {ORIGIN: ALLOWED})
    assert response.status_code == 429
    assert response.headers["retry-after"]
    assert response.headers["access-control-expose-headers"] == "Retry-After, X-Ignored-Fields"
    assert response.headers[ALLOW] == ALLOWED


def test_all_websites_may_be_allowed() -> None:
    with in_memory(app_of(allowed_origins=("*",))) as client:
        assert preflight(client, FOREIGN) == (200, "*")
        response = client.post(COMPLETIONS, json=BODY, headers={ORIGIN: FOREIGN})
        assert response.headers[ALLOW] == "*"
        assert "access-control-allow-credentials" not in response.headers


def test_by_default_none_is_allowed() -> None:
    with in_memory(app_of()) as client:
        assert preflight(client, ALLOWED) == (403, None)
        assert ALLOW not in client.post(COMPLETIONS, json=BODY, headers={ORIGIN: ALLOWED}).headers


@pytest.fixture(scope="module")
def keyless() -> Iterator[TestClient]:
    with in_memory(app_of(allowed_origins=(ALLOWED,))) as client:
        yield client


SITE, MODE = "Sec-Fetch-Site", "Sec-Fetch-Mode"


@pytest.mark.parametrize(
    ("method", "headers", "is_refused"),
    [
        ("POST", {}, False),
        ("POST", {ORIGIN: "http://localhost", SITE: "same-origin"}, False),
        ("POST", {ORIGIN: "http://LOCALHOST"}, False),
        ("POST", {ORIGIN: ALLOWED, SITE: "cross-site"}, False),
        ("POST", {ORIGIN: FOREIGN}, True),
        ("POST", {ORIGIN: FOREIGN, SITE: "cross-site", MODE: "navigate"}, True),  # a form
        ("POST", {ORIGIN: "http://localhost:3000", SITE: "same-site"}, True),
        ("POST", {ORIGIN: "null", SITE: "cross-site"}, True),  # a page in a sandbox, or a file
        ("POST", {ORIGIN: ""}, True),
        ("POST", {SITE: "cross-site"}, True),
        ("GET", {SITE: "none"}, False),  # an address that a person has typed
        ("GET", {SITE: "cross-site", MODE: "navigate"}, False),  # a link
        ("GET", {SITE: "cross-site", MODE: "no-cors"}, True),
        ("GET", {SITE: "same-site", MODE: "cors", ORIGIN: "http://localhost:3000"}, True),
    ],
)
def test_pages_of_other_websites_make_nothing_compute(
    keyless: TestClient, method: str, headers: dict[str, str], is_refused: bool
) -> None:
    path = COMPLETIONS if method == "POST" else "/v1/models"
    content = json.dumps(BODY) if method == "POST" else None
    response = keyless.request(
        method, path, content=content, headers={"Content-Type": "text/plain"} | headers
    )
    assert response.status_code == (403 if is_refused else 200)
    if is_refused:
        error = response.json()["error"]
        assert (error["param"], error["code"]) == ("Origin", "origin_not_allowed")
        assert "--allowed-origins" in error["message"]


def test_a_name_that_was_made_to_lead_here_is_refused_first() -> None:
    with in_memory(app_of(allowed_origins=(ALLOWED,))) as client:
        assert preflight(client, ALLOWED) == (200, ALLOWED)
        assert preflight(client, ALLOWED, Host="example.com") == (400, None)
        assert client.get("/v1/models", headers={ORIGIN: ALLOWED, "Host": "example.com"}).status_code == 400


@pytest.mark.parametrize(
    "origin",
    ["", "example.org", "https://", "https://example.org/", "https://a.org/b", "http://A.org", "http://a:b"],
)
def test_what_is_no_origin(origin: str) -> None:
    with pytest.raises(ValueError, match="an allowed origin looks like"):
        ServerConfig((MODEL,), SchedulerConfig(8, 4), allowed_origins=(origin,))


@pytest.mark.parametrize("origin", ["*", "http://localhost:3000", "https://[::1]:8080", "app://obsidian.md"])
def test_what_is_an_origin(origin: str) -> None:
    assert ServerConfig((MODEL,), SchedulerConfig(8, 4), allowed_origins=(origin,))
