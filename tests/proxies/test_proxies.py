"""Tests each proxy with the configuration of its page: clients get the responses that the middleware would send."""

import http.client
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from proxies.programs import KINDS, found, missing, proxy, served
from redis_servers import free_port
from web.real_servers import APPS
from web_servers import serve_uvicorn

FIELDS = ("retry-after", "ratelimit-policy", "ratelimit", "cache-control", "content-type")
CLIENTS = {kind: f"127.0.0.{number}" for number, kind in enumerate(KINDS, 10)}  # addresses that no proxy has
DAY = re.compile(r"\b86[34][0-9]{2}\b")  # seconds left of a day, which differ if both count from different seconds
SETTINGS = """
limits = "1000/day using fixed_window"
trusted_proxies = ["127.0.0.1"]
blocklist = [{header = "X-Api-Key", value = "bad"}]

[[rules]]
name = "login"
path = "/login"
methods = ["POST"]
limits = "2/day using fixed_window"

[[rules]]
name = "api"
path = "/api/{rest:path}"
limits = "1/day using fixed_window"
key = "header:X-Api-Key"
"""
DENYING = f'store = "redis://127.0.0.1:1/0"\non_store_error = "deny"\n{SETTINGS}'


class Seen(NamedTuple):
    status: int
    fields: dict[str, str]
    body: str


class Place(NamedTuple):
    """A proxy in front of the app, and the middleware around the same app, without a proxy."""

    kind: str
    proxy: int
    middleware: int

    def both(self, method: str, path: str, **headers: str) -> tuple[Seen, Seen]:
        """Send the same request to each, and return both responses."""
        return (
            ask(self.kind, self.proxy, method, path, **headers),
            ask(self.kind, self.middleware, method, path, **headers),
        )


def ask(kind: str, port: int, method: str, path: str, **headers: str) -> Seen:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60, source_address=(CLIENTS[kind], 0))
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        fields = {name.lower(): DAY.sub("DAY", value) for name, value in response.getheaders()}
        body = DAY.sub("DAY", response.read().decode())
        return Seen(response.status, {name: fields[name] for name in FIELDS if name in fields}, body)
    finally:
        connection.close()


@pytest.fixture(scope="module")
def app() -> Iterator[int]:
    with serve_uvicorn("proxied_asgi:bare", APPS, "--no-access-log") as server:
        yield int(server.url.rpartition(":")[2])


@pytest.fixture(scope="module", params=["", "deny"])
def ports(
    request: pytest.FixtureRequest, app: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, int]]:
    """Yield the ports of the app, the service and the middleware. With `deny`, the store is unavailable."""
    folder = tmp_path_factory.mktemp("service")
    grpc = free_port() if found("envoy") else 0
    options = ["--grpc", f"127.0.0.1:{grpc}"] if grpc else []
    limits = {"TEST_LIMITS": str(folder / "limits.toml")}
    with (
        served(folder, DENYING if request.param else SETTINGS, *options) as (service, _),
        serve_uvicorn("proxied_asgi:limited", APPS, "--no-access-log", "--no-proxy-headers", env=limits) as limited,
    ):
        port = int(limited.url.rpartition(":")[2])
        yield {"app": app, "service": service, "grpc": grpc, "middleware": port, "denies": bool(request.param)}


@pytest.fixture(scope="module", params=list(KINDS))
def place(
    request: pytest.FixtureRequest, ports: dict[str, int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    kind: str = request.param
    if found(kind) is None:
        pytest.skip(missing(kind))
    with proxy(kind, tmp_path_factory.mktemp(kind), ports) as port:
        yield Place(kind, port, ports["middleware"])


def by_http(place: Place) -> None:
    if place.kind == "envoy-grpc":
        pytest.skip("Envoy has one status for all refusals, and no header in the descriptor of the docs")


@pytest.mark.parametrize("ports", [""], indirect=True)
class TestDecisions:
    def test_admissions_and_refusals_equal_those_of_the_middleware(self, place: Place) -> None:
        seen = []
        for _ in range(3):
            given, wanted = place.both("POST", "/login?next=/", Content_Length="0")
            assert given == wanted
            seen.append(given)
        assert [one.status for one in seen] == [200, 200, 429]
        assert seen[0].body == "app POST /login"
        assert seen[0].fields["ratelimit"] == '"login";r=1;t=DAY'
        assert seen[2].fields == {
            "retry-after": "DAY",
            "ratelimit-policy": '"login";q=2;w=DAY',
            "ratelimit": '"login";r=0;t=DAY',
            "cache-control": "no-store",
            "content-type": "application/problem+json",
        }
        assert '"violated-policies":["login"]' in seen[2].body

    def test_path_without_a_rule_has_the_default_bucket(self, place: Place) -> None:
        given, wanted = place.both("GET", "/a%20b/?x=1&y=%2F")
        assert given == wanted
        assert given.fields["ratelimit"] == '"default";r=999;t=DAY'

    def test_forged_headers_do_not_change_the_bucket(self, place: Place) -> None:
        first, _ = place.both("GET", "/")
        forged = [
            ask(place.kind, place.proxy, "GET", "/", X_Forwarded_For="203.0.113.9", Forwarded="for=203.0.113.9"),
            ask(place.kind, place.proxy, "GET", "/", X_Forwarded_Uri="/free", X_Original_Uri="/free", X_Real_Ip="::1"),
        ]
        left = [int(one.fields["ratelimit"].partition(";r=")[2].partition(";")[0]) for one in (first, *forged)]
        assert left == [left[0], left[0] - 1, left[0] - 2]

    def test_keys_are_read_from_headers(self, place: Place) -> None:
        by_http(place)
        for key, statuses in (("a", [200, 429]), ("b", [200, 429])):
            for status in statuses:
                given, wanted = place.both("GET", "/api/x", X_Api_Key=f"{place.kind}-{key}")
                assert given == wanted
                assert given.status == status

    def test_blocklisted_client_is_refused(self, place: Place) -> None:
        by_http(place)
        given, wanted = place.both("GET", "/", X_Api_Key="bad")
        assert given == wanted
        assert given.status == 403

    def test_head_is_refused_without_a_body(self, place: Place) -> None:
        by_http(place)
        for status in (200, 429):
            given, wanted = place.both("HEAD", "/api/x", X_Api_Key=f"{place.kind}-head")
            assert (given.status, given.body) == (status, "")
            assert given.fields.get("ratelimit") == wanted.fields["ratelimit"]

    def test_refusal_by_the_app_is_unchanged(self, place: Place) -> None:
        given, wanted = place.both("GET", "/forbidden")
        assert (given.status, given.body) == (wanted.status, wanted.body) == (403, "app GET /forbidden")


@pytest.mark.parametrize("ports", ["deny"], indirect=True)
def test_unavailable_store_denies_requests(place: Place) -> None:
    by_http(place)
    given, wanted = place.both("GET", "/")
    if place.kind == "envoy":  # Envoy takes a 503 for a failure of the service and admits the request
        wanted = wanted._replace(status=429, body=wanted.body.replace("503", "429"))
    assert given == wanted
    assert given.status == (429 if place.kind == "envoy" else 503)
    assert given.fields["retry-after"] == "1"


@pytest.mark.parametrize("kind", list(KINDS))
def test_slow_or_stopped_service_admits_requests(kind: str, app: int, tmp_path: Path) -> None:
    if found(kind) is None:
        pytest.skip(missing(kind))
    grpc = free_port()
    options = ["--grpc", f"127.0.0.1:{grpc}"] if kind == "envoy-grpc" else []
    with (
        served(tmp_path, SETTINGS, *options) as (service, process),
        proxy(kind, tmp_path, {"app": app, "service": service, "grpc": grpc}, patient=False) as port,
    ):
        os.killpg(process.pid, signal.SIGSTOP)  # the process and its workers
        slow = [ask(kind, port, "GET", "/x") for _ in range(2)]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        away = [ask(kind, port, "GET", "/x") for _ in range(2)]
    for seen in (*slow, *away):
        assert (seen.status, seen.body) == (200, "app GET /x")
        assert "ratelimit" not in seen.fields
