"""No error, log line or repr contains a password from a store's URL, or an address from a key."""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ratelimit_mw import AsyncLimiter, ConfigError, Limiter, RateLimited, StoreError
from ratelimit_mw.cli import main
from ratelimit_mw.stores.redis import AsyncRedisStore, RedisStore
from ratelimit_mw.stores.redis.url import connection_factory
from ratelimit_mw.stores.url import open_store
from ratelimit_mw.wsgi import RateLimitMiddleware
from redis_servers import RedisServer
from web.wsgi_talk import Server, hello, read

PASSWORD, ADDRESS = "hunter2-of-ours", "203.0.113.77"
KINDS = pytest.mark.parametrize("kind", ["threads", "asyncio"])


@pytest.fixture(scope="module")
def url(redis_servers: Mapping[str, RedisServer], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield a URL to format with a password. The server's user `shop` has no rights but to authenticate."""
    acl = tmp_path_factory.mktemp("acl") / "users.acl"
    acl.write_text(f"user default on nopass ~* &* +@all\nuser shop on >{PASSWORD} ~* &* -@all\n", "utf-8")
    with RedisServer(next(iter(redis_servers.values())).binary, "--aclfile", str(acl)) as server:
        yield f"redis://USER:{{password}}@127.0.0.1:{server.port}/0"


def hit(kind: str, url: str) -> list[object]:
    """Return what a failing hit raises: the error and its causes, each with its repr and its arguments."""
    try:
        if kind == "threads":
            store = RedisStore(url, timeout=1.0)
            Limiter(store).hit("1/hour", ADDRESS)
        else:
            asyncio.run(ahit(url))
    except StoreError as error:
        shown: list[object] = []
        cause: BaseException | None = error
        while cause is not None:
            shown += [cause, repr(cause), cause.args]
            cause = cause.__cause__ or cause.__context__
        return shown
    pytest.fail("it did not fail")


async def ahit(url: str) -> None:
    store = AsyncRedisStore(url, timeout=1.0)
    try:
        await AsyncLimiter(store).hit("1/hour", ADDRESS)
    finally:
        await store.aclose()


@KINDS
@pytest.mark.parametrize(("user", "password"), [("shop", f"{PASSWORD}x"), ("shop", PASSWORD), ("nobody", PASSWORD)])
def test_login_error_contains_no_password_or_address(kind: str, user: str, password: str, url: str) -> None:
    shown = " ".join(map(str, hit(kind, url.format(password=password).replace("USER", user))))
    assert "StoreError" in shown
    assert PASSWORD not in shown
    assert ADDRESS not in shown


@KINDS
def test_connection_error_contains_no_password(kind: str, tmp_path: Path) -> None:
    for place in (f"redis://:{PASSWORD}@127.0.0.1:1/0", f"unix://:{PASSWORD}@{tmp_path}/none"):
        assert PASSWORD not in " ".join(map(str, hit(kind, place)))


def test_repr_of_a_store_contains_no_password(url: str) -> None:
    whole = url.format(password=PASSWORD)
    for store in (RedisStore(whole), AsyncRedisStore(whole), open_store(whole, 1.0)):
        assert PASSWORD not in f"{store!r} {store}"


@pytest.mark.parametrize(
    "wrong", ["{}", "//:{}@host:1", "http://:{}@host:1/0", "redis://:{}@host:port/0", "redis://:a/{}@host:1/0"]
)
def test_error_of_an_invalid_url_contains_no_password(wrong: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(wrong.format(PASSWORD), 1.0)
    assert PASSWORD not in f"{caught.value} {caught.value!r} {caught.value.__cause__!r}"


def test_log_contains_no_password_or_address(
    url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ratelimit_mw.core.log._quiet_until", {})
    caplog.set_level(logging.DEBUG, "ratelimit_mw")
    store = url.format(password=PASSWORD).replace("USER", "shop")
    app = RateLimitMiddleware(hello, limits="1/hour", key="ip", store=store, store_timeout=1.0)
    try:
        for _ in range(2):
            read(Server(REMOTE_ADDR=ADDRESS).ask(app))
    finally:
        app.close()
    assert "rejects this app" in caplog.text
    assert PASSWORD not in caplog.text
    assert ADDRESS not in caplog.text


def test_rate_limited_error_contains_no_address() -> None:
    limiter = Limiter()

    @limiter.limit("1/hour", key=lambda: ADDRESS)
    def job() -> None:
        """Do nothing."""

    job()
    with pytest.raises(RateLimited) as caught:
        job()
    assert ADDRESS not in f"{caught.value} {caught.value!r}"


def test_repr_of_a_connection_factory_contains_no_password() -> None:
    found = connection_factory(f"redis://:{PASSWORD}@127.0.0.1:6379/0", 1.0)
    assert found.options["password"] == PASSWORD
    assert repr(found) == f"{found}" == "ConnectionFactory(Connection)"


@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+cluster", "redis+sentinel"])
@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
def test_repr_of_a_limiter_contains_no_password(kind: Any, scheme: str) -> None:
    options = f"?password={PASSWORD}" if scheme != "redis+sentinel" else f"?sentinel_password={PASSWORD}"
    limiter = kind(f"{scheme}://shop:{PASSWORD}@127.0.0.1:1/{'limits' * (scheme == 'redis+sentinel')}{options}")
    shown = [limiter, limiter.store, vars(limiter), vars(limiter.store)]
    assert PASSWORD not in " ".join(map(repr, shown))


def test_check_prints_no_password(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "limits.toml"
    wrong = [url.format(password=PASSWORD), f"redis://:{PASSWORD}@127.0.0.1:1/0", f"redis://:{PASSWORD}@h:{PASSWORD}"]
    for store in [*wrong, f"redis+sentinel://127.0.0.1:1/limits?sentinel_password={PASSWORD}"]:
        file.write_text(f'limits = "5/minute"\nstore = "{store}"\n', "utf-8")
        assert main(["check", str(file), "--store"]) > 0
        printed = capsys.readouterr()
        assert PASSWORD not in printed.out + printed.err
