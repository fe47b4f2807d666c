"""Tests TLS with `rediss://` and `rediss+sentinel://`, with certificates made for the tests."""

import asyncio
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

import tls
from held_proxy import HeldProxy
from ratelimit_mw import Charge, FixedWindow, StoreError
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.redis import AsyncRedisStore
from redis_sentinels import SERVICE, SentinelServer
from redis_servers import RedisServer
from stores.opened import Open, each_kind

PATIENCE = 20.0  # seconds
LATENCY = 0.1  # seconds
TIMEOUT = 0.4  # seconds; more than LATENCY, because a busy machine is slow
ATTEMPTS = 50


class Served(NamedTuple):
    """A server that speaks TLS at this port."""

    server: RedisServer
    port: int
    files: tls.Certificates

    def url(self, **options: object) -> str:
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"rediss://127.0.0.1:{self.port}/0?{query}"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tls.Certificates:
    return tls.made_in(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def served(redis_server: RedisServer, files: tls.Certificates) -> Iterator[Served]:
    with tls.server_with_tls(redis_server.binary, files) as (server, port):
        yield Served(server, port, files)


def question(number: int) -> list[Charge]:
    """Return a charge whose decision shows its number."""
    return [Charge(f"k{number}", FixedWindow(1000 + number, 3600))]


def test_concurrent_tasks_get_their_own_decisions_over_tls(served: Served) -> None:
    async def main() -> list[int]:
        store = AsyncRedisStore(served.url(ssl_cert_reqs="none"), timeout=5)
        answers = await asyncio.gather(*(store.atake(question(number)) for number in range(100)))
        await store.aclose()
        return [decision.remaining for (decision,) in answers]

    assert asyncio.run(main()) == list(range(999, 1099))


@each_kind
@pytest.mark.parametrize("required", [{}, {"ssl_cert_reqs": "required"}])
def test_trusted_certificate_is_accepted(opened: Open, served: Served, required: dict[str, str]) -> None:
    with opened(served.url(ssl_ca_certs=served.files.authority, **required), timeout=5) as store:
        assert store.take(question(7))[0].remaining == 1006


@each_kind
@pytest.mark.parametrize("reqs", [{}, {"ssl_cert_reqs": "required"}])
def test_untrusted_certificate_is_a_store_error(opened: Open, served: Served, reqs: dict[str, str]) -> None:
    trusted: list[dict[str, object]] = [{}, {"ssl_ca_certs": served.files.stranger}]
    for options in trusted:
        with (
            opened(served.url(**options, **reqs), timeout=5) as store,
            pytest.raises(StoreError, match=r"cannot connect: .*certificate verify failed"),
        ):
            store.take(question(7))


@each_kind
def test_missing_certificate_file_is_a_store_error(opened: Open, served: Served, tmp_path: Path) -> None:
    with (
        opened(served.url(ssl_ca_certs=tmp_path / "no.pem"), timeout=5) as store,
        pytest.raises(StoreError, match=r"cannot connect: .*No such file"),
    ):
        store.take(question(7))


@pytest.mark.promise(8)
@each_kind
def test_killed_server_is_a_store_error(opened: Open, served: Served) -> None:
    with opened(served.url(ssl_ca_certs=served.files.authority), timeout=5) as store:
        store.take(question(1))
        served.server.kill()
        with pytest.raises(StoreError):
            store.take(question(1))


@each_kind
def test_store_reaches_sentinels_and_servers_over_tls(opened: Open, served: Served) -> None:
    with SentinelServer(served.server.binary) as sentinel, tls.tls_proxy(sentinel.port, served.files) as port:
        assert sentinel.ask(f"SENTINEL MONITOR {SERVICE} 127.0.0.1 {served.port} 1") == "+OK"
        url = f"rediss+sentinel://127.0.0.1:{port}/{SERVICE}?ssl_ca_certs={served.files.authority}"
        with opened(url, timeout=5) as store:
            answered(store)
        with opened(f"rediss+sentinel://127.0.0.1:{port}/{SERVICE}", timeout=5) as store:
            refused(store, r"Sentinel 127.0.0.1:\d+: .*certificate verify failed")


def refused(store: Store, why: str) -> None:
    """Take until a call fails for this reason. On a busy machine, a call may time out before the reason is known."""
    end = time.monotonic() + PATIENCE
    while True:
        with pytest.raises(StoreError) as raised:
            store.take(question(7))
        if re.search(why, str(raised.value)):
            return
        assert time.monotonic() < end, raised.value


def answered(store: Store) -> int:
    """Take until a call succeeds, and return how many calls failed before."""
    end = time.monotonic() + PATIENCE
    failed = 0
    while True:
        try:
            assert store.take(question(7))[0].limit == 1007
        except StoreError:
            failed += 1
            assert time.monotonic() < end
        else:
            return failed


@pytest.mark.one_redis
@pytest.mark.promise(8)
@each_kind
def test_connecting_may_take_longer_than_the_timeout_of_a_request(opened: Open, served: Served) -> None:
    """TLS, password and script take six round trips, 0.6 s. A request waits for 0.4 s."""
    assert served.server.ask("ACL SETUSER limiter on >secret ~* &* +@all") == "+OK"
    with HeldProxy(served.port, LATENCY) as link:
        url = f"rediss://limiter:secret@127.0.0.1:{link.port}/0?ssl_ca_certs={served.files.authority}"
        for _ in range(ATTEMPTS):
            before = link.accepted
            with opened(url, timeout=TIMEOUT) as store, ThreadPoolExecutor(20) as callers:
                failed = list(callers.map(lambda _, own=store: answered(own), range(20)))
            # the store opens one connection after the other, not one per caller
            assert link.accepted - before <= max(failed) + 1
            if min(failed) >= 1:
                break  # otherwise some callers started late or waited longer, on a busy machine
        else:
            pytest.fail("no run in which all requests failed before a connection was open")
