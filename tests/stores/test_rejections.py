"""The store distinguishes a server that rejects this app until a setting changes from one that is unavailable."""

import logging
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis.exceptions import ResponseError

import tls
from ratelimit_mw import Charge, FixedWindow, StoreError
from ratelimit_mw.core.errors import StoreNotQueried
from ratelimit_mw.stores.redis.failures import as_store_error, classify_error
from ratelimit_mw.stores.redis.protocol import NoCodec
from ratelimit_mw.wsgi import RateLimitMiddleware
from redis_cluster import RedisCluster, free_cluster_port
from redis_sentinels import SERVICE, SentinelServer
from redis_servers import RedisServer
from stores.opened import Open, each_kind
from web.wsgi_talk import Server, hello, read

pytestmark = [pytest.mark.promise(8), pytest.mark.one_redis, pytest.mark.usefixtures("unthrottled_log")]

CHARGES = [Charge("{k}:r", FixedWindow(10, 60))]
PASSWORD = "hunter2-of-ours"


def refused(opened: Open, url: str, **options: object) -> StoreError:
    """Return the error that a take raises."""
    with opened(url, **{"timeout": 5, **options}) as store, pytest.raises(StoreError) as caught:
        store.take(CHARGES)
    return caught.value


def shown(error: StoreError) -> str:
    """Return the text of an error without the address of the server, because its port differs in each run."""
    return re.sub(r"^cannot connect: (127\.0\.0\.1|localhost):\d+: ", "cannot connect: ", str(error))


def at(server: RedisServer, *, login: str = "", tail: str = "", scheme: str = "redis") -> str:
    return f"{scheme}://{login}127.0.0.1:{server.port}{tail}"


def wants_a_password(server: RedisServer) -> None:
    server.ask("CONFIG SET requirepass x")


def has_a_user(server: RedisServer) -> None:
    server.ask(f"ACL SETUSER shop on >{PASSWORD} ~* &* +@all")


def grants(rules: str) -> Callable[[RedisServer], object]:
    return lambda server: server.ask(f"ACL SETUSER shop on >{PASSWORD} resetkeys -@all {rules}")


def is_a_replica(server: RedisServer) -> None:
    server.ask("REPLICAOF 127.0.0.1 1")


def is_left_alone(_: RedisServer) -> None:
    """Leave the server as it starts."""


NO_COLON = (
    "wrong user or password; write the right ones into the store's URL: redis://USER:PASSWORD@HOST:PORT; text before @ "
    "without a colon is a user's name"
)
OURS = f"shop:{PASSWORD}@"
REJECTIONS: dict[str, tuple[Callable[[RedisServer], object], dict[str, str], str]] = {
    "another password": (has_a_user, {"login": "shop:wrong@"}, "cannot connect: wrong user or password; write the"),
    "a password without a colon": (wants_a_password, {"login": f"{PASSWORD}@"}, f"cannot connect: {NO_COLON}"),
    "no such user": (has_a_user, {"login": f"nobody:{PASSWORD}@"}, "cannot connect: wrong user or password; write the"),
    "no password": (wants_a_password, {}, "cannot connect: the server requires a password; write user and password"),
    "no password, another database": (wants_a_password, {"tail": "/1"}, "cannot connect: the server requires a pass"),
    "a password too many": (
        is_left_alone,
        {"login": ":x@"},
        "cannot connect: the store's URL has a password, and the server has none; remove it",
    ),
    "no rights": (grants("~*"), {"login": OURS}, "cannot connect: the user lacks a right; grant it with ACL SETUSER"),
    "not all rights": (
        grants("~* +eval +evalsha +script"),
        {"login": OURS},
        "the user lacks a right; grant it with ACL SETUSER, as listed on the page on Redis of the documentation",
    ),
    "other keys": (
        grants("~other:* +@all"),
        {"login": OURS},
        "the user may not use keys with the prefix of this store; grant them with ACL SETUSER",
    ),
    "no such database": (is_left_alone, {"tail": "/99"}, "cannot connect: the server has no database of this number;"),
    "a replica": (is_a_replica, {}, "the server is a replica, which may not write; name the master in the store's URL"),
    "no cluster": (
        is_left_alone,
        {"scheme": "redis+cluster"},
        r"node 127.0.0.1:\d+: the server is not a node of a cluster; begin the store's URL with redis://",
    ),
    "no Sentinel": (
        is_left_alone,
        {"scheme": "redis+sentinel", "tail": "/limits"},
        r"cannot connect: Sentinel 127.0.0.1:\d+: the server is not a Sentinel; name the Sentinels in the store's URL",
    ),
    "no TLS": (
        is_left_alone,
        {"scheme": "rediss"},
        "cannot connect: the server does not speak TLS on this port; name its TLS port, or begin the store's URL with",
    ),
}


@each_kind
@pytest.mark.parametrize("name", REJECTIONS)
def test_error_and_log_explain_the_rejection(
    opened: Open, name: str, server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    prepare, url, expected = REJECTIONS[name]
    prepare(server)
    error = refused(opened, at(server, **url))
    assert re.match(expected, shown(error)), error
    assert f"127.0.0.1:{server.port}" in str(error) or not expected.startswith("cannot connect")
    assert error.rejected
    lines = [one for one in caplog.messages if f"store 127.0.0.1:{server.port} rejects this app: " in one]
    assert len(lines) == 1
    assert expected.removeprefix("cannot connect: ").rpartition(": ")[2] in lines[0]
    assert PASSWORD not in f"{caplog.text} {error}"


@each_kind
def test_repeated_rejections_are_logged_once(
    opened: Open, server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    has_a_user(server)
    for _ in range(5):
        refused(opened, at(server, login="shop:wrong@"))
    assert caplog.text.count("rejects this app") == 1


AWAY: dict[str, Callable[[RedisServer], object]] = {
    "killed": lambda server: server.kill(),
    "full": lambda server: server.ask("CONFIG SET maxmemory 1"),
    "paused": lambda server: server.pause(),
}


@each_kind
@pytest.mark.parametrize("how", AWAY)
def test_error_of_an_unavailable_server_is_not_a_rejection(
    opened: Open, how: str, server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    AWAY[how](server)
    error = refused(opened, server.url)
    assert not error.rejected
    assert "rejects this app" not in caplog.text


@each_kind
def test_server_url_with_a_database_of_a_cluster_node_is_a_rejection(opened: Open, redis_server: RedisServer) -> None:
    with RedisServer(redis_server.binary, "--cluster-enabled", "yes", choose_port=free_cluster_port) as node:
        has_databases = node.ask("CONFIG GET cluster-databases") != "*0"  # Valkey 9 and later; one by default
        error = refused(opened, at(node, tail="/1"))
    mistake = (
        "the server has no database of this number; write another one into the store's URL"
        if has_databases
        else "the server is a node of a cluster; begin the store's URL with redis+"
    )
    assert shown(error).startswith(f"cannot connect: {mistake}")
    assert error.rejected


@each_kind
def test_server_url_of_a_cluster_is_a_rejection(opened: Open, redis_cluster: RedisCluster) -> None:
    """The reply is MOVED for a key of another node, and CROSSSLOT for keys in several slots."""
    node = redis_cluster.nodes[0]
    with opened(at(node), timeout=5) as store:
        for keys in (["{a}", "{b}"], ["{a}"]):
            with pytest.raises(StoreError) as caught:
                store.take([Charge(key, FixedWindow(10, 60)) for key in keys])
            assert str(caught.value).startswith("the server is a node of a cluster; begin the store's URL with redis+c")
            assert caught.value.rejected


@each_kind
def test_rejection_by_one_cluster_node_affects_only_its_slots(opened: Open, redis_cluster: RedisCluster) -> None:
    """The error names the node that rejects."""
    owner = redis_cluster.owner(15495)  # the slot of {a}
    owner.ask("CONFIG SET requirepass x")
    try:
        with opened(redis_cluster.url, timeout=5) as store:
            with pytest.raises(StoreError, match=f"node 127.0.0.1:{owner.port}: the server requires a pass") as caught:
                store.take([Charge("{a}:r", FixedWindow(10, 60))])
            assert store.take([Charge("{b}:r", FixedWindow(10, 60))])[0].allowed  # slot 3300
    finally:
        with socket.create_connection(("127.0.0.1", owner.port), 5) as admin:
            admin.sendall(b'AUTH x\r\nCONFIG SET requirepass ""\r\nQUIT\r\n')
            assert b"".join(iter(lambda: admin.recv(4096), b"")) == b"+OK\r\n" * 3
    assert caught.value.rejected


@contextmanager
def answering(reply: bytes) -> Iterator[int]:
    """Yield the port of a server that always sends this reply."""
    ends = threading.Event()

    def serve(listening: socket.socket) -> None:
        while not ends.is_set():
            try:
                client, _ = listening.accept()
            except OSError:
                return
            with client:
                client.settimeout(5)
                try:
                    while client.recv(65536):
                        client.sendall(reply)
                except OSError:
                    pass

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,), daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        ends.set()
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(10)


@each_kind
@pytest.mark.parametrize("reply", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9.6\r\n"])
def test_server_that_is_not_redis_is_a_rejection(opened: Open, reply: bytes) -> None:
    with answering(reply) as port:
        error = refused(opened, f"redis://:{PASSWORD}@127.0.0.1:{port}")
    assert shown(error).startswith("cannot connect: the server on this port does not speak the protocol of Redis; name")
    assert error.rejected


@each_kind
def test_error_does_not_contain_a_password_that_the_reply_quotes(
    opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that does not know AUTH sends such a reply, and so does a proxy in front of one."""
    reply = f"-ERR unknown command `AUTH`, with args beginning with: `shop`, `{PASSWORD}`, \r\n".encode()
    with answering(reply) as port:
        error = refused(opened, f"redis://shop:{PASSWORD}@127.0.0.1:{port}")
    whole = ""
    found: BaseException | None = error
    while found is not None:
        whole += f"{found} {found!r} {found.args}"
        found = found.__cause__ or found.__context__
    assert "the server lacks a command of Redis 6.2" in whole
    assert PASSWORD not in whole + caplog.text


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tls.Certificates:
    return tls.made_in(tmp_path_factory.mktemp("certificates"))


@each_kind
def test_tls_mistakes_are_rejections(opened: Open, redis_server: RedisServer, files: tls.Certificates) -> None:
    with tls.server_with_tls(redis_server.binary, files) as (_, port):
        found = [
            refused(opened, f"{scheme}://{host}:{port}/0?{query}".rstrip("?"))
            for scheme, host, query in (
                ("rediss", "127.0.0.1", ""),
                ("rediss", "localhost", f"ssl_ca_certs={files.authority}"),
                ("rediss", "127.0.0.1", f"ssl_ca_certs={files.authority}.none"),
                ("redis", "127.0.0.1", ""),
            )
        ]
    assert [shown(error).removeprefix("cannot connect: ").partition(";")[0].partition(" (")[0] for error in found] == [
        "the server's certificate is not trusted",
        "the server's certificate is not trusted",
        "a file in an ssl_ option of the store's URL does not exist",
        "the server speaks TLS on this port",
    ]
    assert all(error.rejected for error in found)


@each_kind
def test_wrong_sentinel_services_and_passwords_are_rejections(
    opened: Open, server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with SentinelServer(server.binary) as sentinel:
        sentinel.ask(f"SENTINEL MONITOR {SERVICE} 127.0.0.1 {server.port} 1")
        url = f"redis+sentinel://{{}}127.0.0.1:{sentinel.port}/{{}}"
        wrong_service = refused(opened, url.format("", "limit"))
        wants_a_password(server)
        of_the_server = refused(opened, url.format("", SERVICE))
        sentinel.ask("ACL SETUSER default >y")
        of_the_sentinel = refused(opened, url.format(":x@", SERVICE))
        wrong = refused(opened, url.format(":x@", SERVICE) + f"?sentinel_password={PASSWORD}")
    assert "no service 'limit', did you mean 'limits'?" in str(wrong_service)
    assert caplog.text.count(f"store 127.0.0.1:{sentinel.port} rejects this app: no service 'limit', did you mean") == 1
    assert shown(of_the_server).startswith(
        "cannot connect: the server requires a password; write user and password into"
    )
    assert re.match(r"cannot connect: Sentinel 127\S+ the Sentinel requires a password; set sent", str(of_the_sentinel))
    assert re.match(r"cannot connect: Sentinel 127\S+ wrong user or password for the Sentinel; set sent", str(wrong))
    assert PASSWORD not in str(wrong)
    assert all(error.rejected for error in (wrong_service, of_the_server, of_the_sentinel, wrong))


BY_NOBODY = """
import asyncio, os, sys
from ratelimit_mw import Charge, FixedWindow, StoreError
from ratelimit_mw.stores.redis import AsyncRedisStore, RedisStore

def take(url):
    try:
        RedisStore(url, timeout=5).take([Charge("k", FixedWindow(1, 60))])
    except StoreError as error:
        print(error.rejected, error)

async def atake(url):
    store = AsyncRedisStore(url, timeout=5)
    try:
        await store.atake([Charge("k", FixedWindow(1, 60))])
    except StoreError as error:
        print(error.rejected, error)
    await store.aclose()

for url in sys.argv[1:]:
    take(url)
    asyncio.run(atake(url))
    if os.getuid() == 0:
        os.setuid(65534)
"""


def test_unix_socket_without_permission_is_a_rejection(redis_server: RedisServer, tmp_path: Path) -> None:
    path = tmp_path / "redis.sock"
    with RedisServer(redis_server.binary, "--unixsocket", str(path), "--unixsocketperm", "000"):
        # root may open every socket; the first URL imports modules that another user could not import
        command = [sys.executable, "-c", BY_NOBODY, f"unix://{tmp_path}/none", f"unix://{path}"]
        lines = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    assert [line.startswith("False cannot connect: ConnectionError: Error 2 conn") for line in lines[:2]] == [True] * 2
    assert [line.partition(";")[0] for line in lines[2:]] == [
        "True cannot connect: this process may not open the server's socket"
    ] * 2


def test_middleware_counts_in_its_process_and_logs_the_rejection(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "ratelimit_mw")
    has_a_user(server)
    app = RateLimitMiddleware(hello, limits="1/hour", store=at(server, login="shop:wrong@"), store_timeout=5)
    servers = [Server() for _ in range(10)]
    for one in servers:
        read(one.ask(app))
    app.close()
    statuses = [one.started[0][0] for one in servers]
    assert statuses == ["200 OK", *["429 Too Many Requests"] * 9]  # counted in this process
    (rejected,) = caplog.messages
    assert rejected.startswith(
        f"ratelimit_mw: store 127.0.0.1:{server.port} rejects this app: wrong user or password; write"
    )


def test_copied_store_error_keeps_type_text_and_rejected() -> None:
    """One call serves many requests, and each of them raises a copy of the error."""
    error = StoreError("x", rejected=True)
    copy = error.copy()
    assert (str(copy), copy.rejected, copy is error) == ("x", True, False)
    again = StoreNotQueried("closed").copy()
    assert (type(again), str(again), again.rejected) == (StoreNotQueried, "closed", False)


@pytest.mark.parametrize("name", ["cmsgpack", "struct"])
def test_missing_codec_library_is_classified_as_no_codec(name: str) -> None:
    error = ResponseError(f"Script attempted to access nonexistent global variable '{name}'")
    assert type(classify_error(error)) is NoCodec


@pytest.mark.parametrize("text", ["the structure of the data is broken", "unknown instruction"])
def test_other_script_errors_are_classified_as_store_errors(text: str) -> None:
    error = classify_error(ResponseError(text))
    assert (type(error), str(error)) == (StoreError, f"ResponseError: {text}")


@pytest.mark.parametrize(
    ("text", "role", "rejected"),
    [
        ("READONLY You can't write against a read only replica.", "server", True),
        ("READONLY You can't write against a read only replica.", "master", False),  # the Sentinels know another master
        ("READONLY You can't write against a read only replica.", "cluster", False),  # the cluster has failed over
        ("LOADING Redis is loading the dataset in memory", "server", False),
        ("BUSY Redis is busy running a script", "server", False),
        ("OOM command not allowed when used memory > 'maxmemory'.", "server", False),
        ("MISCONF Redis is configured to save RDB snapshots", "server", False),
        ("CLUSTERDOWN The cluster is down", "cluster", False),
        ("max number of clients reached", "server", False),
        ("DENIED Redis is running in protected mode because", "server", True),
    ],
)
def test_error_reply_and_role_decide_whether_it_is_a_rejection(text: str, role: str, rejected: bool) -> None:
    assert as_store_error(ValueError(text), role).rejected is rejected  # type: ignore[arg-type]  # the table's are roles
