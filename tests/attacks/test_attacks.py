"""Tests that the middleware withstands every attack on a real server, with exactly the expected statuses."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from importlib.metadata import version

import pytest

from attacks.attack import Attack, Served, Target
from attacks.on_django import ON_DJANGO
from attacks.on_hosts import BEFORE_1_0, ON_HOSTS
from attacks.on_wsgi import ON_WSGI
from attacks.table import ATTACKS
from redis_servers import RedisServer
from web.faces import WSGI
from web.real_servers import APPS
from web_servers import serve_uvicorn, serve_uwsgi

pytestmark = [pytest.mark.promise(9), pytest.mark.promise(10)]


STANDS = [("redis", "h11"), ("memory", "httptools")]  # the store, and uvicorn's parser

BY_HTTPTOOLS = {
    "a whole URL as the path": (200, 200, 200, 429, 404, 429),  # httptools reads the path out of the URL
    "a fragment in the path": (200, 200, 200, 429, 405, 429),  # httptools ends the path at `#`
}


@pytest.fixture(scope="module", params=STANDS, ids="-".join)
def target(request: pytest.FixtureRequest, redis_servers: Mapping[str, RedisServer]) -> Iterator[Target]:
    """Start the servers of this module, each with a Redis of its own.

    Buckets belong to client addresses, and both apps receive requests from the same addresses.
    """
    store, parser = request.param
    options = ("--no-proxy-headers", "--http", parser)
    binary = next(iter(redis_servers.values())).binary
    with ExitStack() as running:
        served = []
        for stand in ("direct", "behind"):
            env = {"STAND": stand}
            if store == "redis":
                env["STORE"] = running.enter_context(RedisServer(binary)).url
            server = running.enter_context(serve_uvicorn("attacked_asgi:app", APPS, *options, env=env))
            served.append(Served(int(server.url.rpartition(":")[2]), server.output))
        yield Target(served[0], served[1], exact=BY_HTTPTOOLS if parser == "httptools" else {})


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_middleware_withstands_each_attack(target: Target, attack: Attack) -> None:
    seen = attack.play(target)
    assert (seen.statuses, seen.forged) == ([*target.exact.get(attack.name, attack.exact)], 0)
    assert attack.held(seen)


@pytest.fixture(scope="module")
def django_target() -> Iterator[Target]:
    """Start a Django project, which no proxy is in front of."""
    with serve_uvicorn("attacked_django:app", APPS, "--no-proxy-headers", "--lifespan", "off") as server:
        served = Served(int(server.url.rpartition(":")[2]), server.output)
        yield Target(served, served)


@pytest.mark.parametrize("attack", ON_DJANGO, ids=lambda attack: attack.name)
def test_the_middleware_of_django_withstands_each_attack(django_target: Target, attack: Attack) -> None:
    seen = attack.play(django_target)
    assert seen.statuses == [*attack.exact]
    assert attack.held(seen)


@pytest.fixture(scope="module", params=["starlette", "fastapi"])
def hosts_target(request: pytest.FixtureRequest) -> Iterator[Target]:
    """Start an app below two hosts."""
    with serve_uvicorn("attacked_hosts:app", APPS, "--no-proxy-headers", env={"ROUTES": request.param}) as server:
        served = Served(int(server.url.rpartition(":")[2]), server.output)
        yield Target(served, served)


@pytest.mark.parametrize("attack", ON_HOSTS, ids=lambda attack: attack.name)
def test_limits_below_hosts_withstand_each_attack(hosts_target: Target, attack: Attack) -> None:
    seen = attack.play(hosts_target)
    assert seen.statuses == [*(attack.exact if version("starlette") >= "1" else BEFORE_1_0)]
    assert attack.held(seen)


@pytest.fixture(scope="module", params=WSGI)
def uwsgi_target(request: pytest.FixtureRequest) -> Iterator[Target]:
    """Start an app under uWSGI, behind a proxy."""
    env = {"FACE": request.param, "PYTHONPATH": str(APPS.parent)}
    with serve_uwsgi("attacked_wsgi:app", APPS, env=env) as server:
        served = Served(int(server.url.rpartition(":")[2]), server.output)
        yield Target(served, served)


@pytest.mark.parametrize("attack", ON_WSGI, ids=lambda attack: attack.name)
def test_wsgi_apps_withstand_each_attack_under_uwsgi(uwsgi_target: Target, attack: Attack) -> None:
    seen = attack.play(uwsgi_target)
    assert seen.statuses == [*attack.exact]
    assert attack.held(seen)


def test_attacks_are_logged_once_per_cause(target: Target) -> None:
    """Costs that raise and untrusted proxy headers are logged once per cause, for any values that the client sends."""
    me = target.address()
    for each in range(30):
        target.ask(me, "POST", "/spend", ("X-Cost", f"no number {each}"), ("X-Forwarded-For", f"11.66.7.{each}"))
    ours = [line for line in target.direct.output().splitlines() if "ratelimit_mw: " in line]
    assert len(ours) <= len(set(ours)) + 1  # a cause may be logged again after a minute
    assert len(ours) <= 6
    assert {"RL-214", "RL-229"} <= {line[-7:-1] for line in ours}  # the cost, and the header
    assert "no number" not in target.direct.output()


def test_attacks_have_unique_names() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)
