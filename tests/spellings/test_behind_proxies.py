"""Checks that no spelling passes a proxy and the service without the limit of the endpoint that it reaches.

Each proxy has the configuration of its page. The servers differ in how they read a target.
"""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from profiles import PROOF
from proxies.programs import found, missing, proxy, served
from spellings import behind
from spellings.served import ASGI_SERVERS, WSGI_SERVERS
from spellings.targets import FOUND, seeds

pytestmark = [pytest.mark.promise(9), pytest.mark.promise(10)]

PROXIES = ("nginx", "caddy", "haproxy")
SOME = ("hypercorn", "uwsgi")  # between them, they keep and cut `#`, and keep and remove dot segments
ALL = (
    *("uvicorn-h11", "uvicorn-httptools", "hypercorn", "daphne", "granian", "gunicorn-asgi"),
    *("gunicorn", "waitress", "uwsgi"),
)
RANDOM = 20_000 // len(ALL) + 1 if PROOF else 150  # for each proxy and server
STEP = 1 if PROOF else 8  # each proxy gets an eighth of the named spellings


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with served(tmp_path_factory.mktemp("service"), behind.settings()) as (port, _):
        yield port


@pytest.fixture(scope="module", params=ALL if PROOF else SOME)
def ports(
    request: pytest.FixtureRequest, service: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, int]]:
    """Yield the port of each installed proxy in front of a server."""
    serving = {**ASGI_SERVERS, **WSGI_SERVERS}[request.param]
    with (
        serving("spelled_asgi:app" if request.param in ASGI_SERVERS else "spelled_wsgi:app") as server,
        ExitStack() as on,
    ):
        inner = {"service": service, "app": int(server.url.rpartition(":")[2])}
        yield {
            kind: on.enter_context(proxy(kind, tmp_path_factory.mktemp(kind), inner)) for kind in PROXIES if found(kind)
        }


@pytest.mark.parametrize("kind", PROXIES)
def test_no_spelling_passes_without_the_limit_of_its_endpoint(
    request: pytest.FixtureRequest, kind: str, ports: dict[str, int]
) -> None:
    if kind not in ports:
        pytest.skip(missing(kind))
    targets = [*FOUND, *seeds()[PROXIES.index(kind) % STEP :: STEP]]
    named = [(target, host) for target in targets for host in (behind.ADMIN, "other.test")]
    drawn = behind.requests(request.node.name, RANDOM)
    seen = behind.run(ports[kind], [*behind.NAMED, *named, *drawn])
    assert seen.escapes == []
    assert seen.evaded == []
    assert seen.reached > RANDOM // 5
