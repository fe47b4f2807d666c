"""Inspects the servers of a store: whether they accept this client, what it may do, and how they are configured."""

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import median
from typing import Any, Final

from msgspec import Struct
from redis.exceptions import NoPermissionError, ResponseError

from ratelimit_mw.core.errors import StoreError
from ratelimit_mw.core.runtime import run
from ratelimit_mw.stores.redis import probe
from ratelimit_mw.stores.redis.cluster import SlotMap, read_cluster_url
from ratelimit_mw.stores.redis.commands import FORMAT
from ratelimit_mw.stores.redis.failures import CALL_ERRORS, ServerKind, classify_error, connection_error
from ratelimit_mw.stores.redis.hash_slots import slot
from ratelimit_mw.stores.redis.protocol import Address
from ratelimit_mw.stores.redis.scripts import read_lua
from ratelimit_mw.stores.redis.sentinel import read_sentinel_url
from ratelimit_mw.stores.redis.sync_transport import connect, query_once
from ratelimit_mw.stores.redis.url import CLUSTER_SCHEMES, SENTINEL_SCHEMES, ConnectionFactory, connection_factory

# the commands that the scripts call and those that the store sends; the documentation's page on Redis lists them, too
SCRIPT_COMMANDS: Final = ("get", "pexpire", "set", "time")
SORTED_SET_COMMANDS: Final = (
    "zadd",
    "zcount",
    "zrange",
    "zrangebyscore",
    "zrem",
    "zremrangebyrank",
    "zremrangebyscore",
    "zscore",
)
REMEMBER_REFUSED_COMMANDS: Final = ("pexpire", "xadd", "zincrby", "zremrangebyrank")  # with `remember_refused`
METRICS_COMMANDS: Final = ("hdel", "hget", "hgetall", "hset", "pexpire")  # with `metrics`, for the dashboard
CLIENT_COMMANDS: Final = ("eval", "evalsha", "hmget", "script|load", "unlink")
CLUSTER_COMMANDS: Final = ("asking", "cluster|slots")
_WRONG_KINDS: Final = {  # servers that the URL of a single server must not name, by mode or role
    "cluster": "a node of a cluster; begin the store's URL with redis+cluster://",
    "sentinel": "a Sentinel; begin the store's URL with redis+sentinel://",
    "replica": "a replica, which may not write; name the master in the store's URL, or use redis+sentinel://",
}
_SORTED_SET_ALGORITHMS: Final = frozenset({"sliding_window_log", "concurrency"})
_LATENCY_CALLS: Final = 5  # the latency is their median
_MAX_CLOCK_DIFFERENCE: Final = 1.0  # seconds
_NOOP_SCRIPT: Final = "return 1"
_PROBE_KEY: Final = "ratelimit-mw-check"


class Node(Struct, kw_only=True):
    """One server. A field that is unknown is None.

    `label`: host and port, or the path of a socket. `server`, `version`, `mode`, `role`: as the server reports them.
    `latency`: seconds of a round trip, the median of five. `clock_offset`: seconds by which its clock is ahead of this
    machine's. `maxmemory`: bytes; 0 is unlimited. `missing`: commands that the limits in use need, but the user may not
    call. `appends`: whether it writes each change to its append-only file.
    """

    label: str
    server: str | None = None
    version: str | None = None
    mode: str | None = None
    role: str | None = None
    latency: float | None = None
    clock_offset: float | None = None
    maxmemory: int | None = None
    maxmemory_policy: str | None = None
    appends: bool | None = None
    missing: list[str] | None = None


class Inspection(Struct):
    """The result of an inspection. The store works if `mistakes` and `unreachable` are empty.

    `mistakes`: rejections, and settings to change. `unreachable`: failures to get an answer. `losses`: how servers may
    lose states before they expire, which matters for long quotas.
    """

    kind: str
    nodes: list[Node] = []
    mistakes: list[str] = []
    warnings: list[str] = []
    unreachable: list[str] = []
    losses: list[str] = []

    def add(self, label: str, error: StoreError) -> None:
        """Record an error: a rejection as a mistake, any other as unreachable."""
        text = f"{label}: {error}" if label not in str(error) else str(error)
        errors = self.mistakes if error.rejected else self.unreachable
        if text not in errors:
            errors.append(text)


def inspect(
    url: str,
    prefix: str,
    algorithms: Iterable[str],
    timeout: float,
    *,
    remembers_refused: bool = False,
    counts: bool = False,
) -> Inspection:
    """Connect to the servers of a URL and inspect them. `timeout`: seconds that a request would wait for them.

    `remembers_refused`, `counts`: the settings `remember_refused` and `metrics`, whose scripts need further rights.
    """
    names = frozenset(algorithms)
    called = [
        *SCRIPT_COMMANDS,
        *(SORTED_SET_COMMANDS if names & _SORTED_SET_ALGORITHMS else ()),
        *(REMEMBER_REFUSED_COMMANDS if remembers_refused else ()),
        *(METRICS_COMMANDS if counts else ()),
    ]
    commands = tuple(dict.fromkeys(called))
    if url.startswith(CLUSTER_SCHEMES):
        report = _cluster(url, prefix, commands)
    elif url.startswith(SENTINEL_SCHEMES):
        report = _sentinels(url, prefix, commands)
    else:
        report = Inspection("server")
        _inspect_server(report, connection_factory(url), "server", prefix, commands)
    if not report.mistakes and not report.unreachable and (error := probe(url, prefix, names)) is not None:
        report.add("store", error)
    report.warnings += _warnings(report.nodes, timeout)
    report.losses += _losses(report.nodes)
    return report


def _cluster(url: str, prefix: str, commands: Sequence[str]) -> Inspection:
    report = Inspection("cluster")
    factory, start = read_cluster_url(url)
    slot_map = SlotMap(start)
    try:
        run(slot_map.refresh(partial(query_once, factory, "cluster")))
    except StoreError as error:
        report.add("cluster", error)
        return report
    for address, numbers in slot_map.slots_by_node().items():
        _inspect_server(report, factory.at(address), "cluster", prefix, commands, numbers)
    return report


def _sentinels(url: str, prefix: str, commands: Sequence[str]) -> Inspection:
    report = Inspection("sentinel")
    parsed = read_sentinel_url(url)
    query = partial(query_once, parsed.sentinel_servers, "sentinel")
    masters: dict[Address, list[str]] = {}
    for address in parsed.sentinels.addresses:
        label = f"Sentinel {address[0]}:{address[1]}"
        try:
            master = run(parsed.sentinels.only(address).master(query))
        except StoreError as error:
            if error.rejected:
                report.mistakes.append(str(error))
            else:
                report.warnings.append(str(error))
        else:
            masters.setdefault(master, []).append(label)
    if len(masters) > 1:
        known = "; ".join(
            f"{', '.join(names_of_sentinels)} names {host}:{port}"
            for (host, port), names_of_sentinels in masters.items()
        )
        report.warnings.append(f"the Sentinels do not agree where the master is: {known}")
    if masters:
        _inspect_server(report, parsed.servers.at(next(iter(masters))), "master", prefix, commands)
    elif not report.mistakes:
        report.unreachable, report.warnings = report.warnings, []
    return report


def _inspect_server(
    report: Inspection,
    factory: ConnectionFactory,
    server_kind: ServerKind,
    prefix: str,
    commands: Sequence[str],
    numbers: Sequence[int] | None = None,
) -> None:
    """Inspect one server and record the results. `numbers`: its slots in a cluster."""
    node = Node(label=factory.label)
    report.nodes.append(node)
    if factory.tls and str(factory.options.get("ssl_cert_reqs")) == "none":
        report.warnings.append(
            f"{node.label}: ssl_cert_reqs=none checks no certificate, so a server in between can read the password; "
            "name the authority with ssl_ca_certs"
        )
    raw_connection = factory.raw_connection()

    def query(*command: Any) -> Any:
        raw_connection.send_command(*command)
        return raw_connection.read_response()

    try:
        connect(raw_connection)
        _read_server_info(node, query)
        if server_kind == "server" and (
            other := _WRONG_KINDS.get(node.mode or "") or _WRONG_KINDS.get(node.role or "")
        ):
            report.mistakes.append(f"{node.label}: it is {other}")
            return
        _read_memory(node, query)
        key = f"{prefix}{FORMAT}:{_hash_tag(numbers)}:rights"
        node.missing = _missing_rights(query, key, commands, cluster=numbers is not None)
        _measure_times(node, query)
    except CALL_ERRORS as error:
        problem = (
            connection_error(factory, error, server_kind)
            if not isinstance(error, ResponseError)
            else _command_error(error, server_kind)
        )
        report.add(node.label, problem)
    finally:
        raw_connection.disconnect()
    if node.missing:
        rights = " ".join(f"+{name}" for name in node.missing)
        report.mistakes.append(f"{node.label}: the user lacks rights; grant them: ACL SETUSER USER {rights}")


def _command_error(error: ResponseError, server_kind: ServerKind) -> StoreError:
    result = classify_error(error, server_kind)
    return result if isinstance(result, StoreError) else StoreError(f"{type(error).__name__}: {error}")


def _read_server_info(node: Node, query: Callable[..., Any]) -> None:
    """Read the fields of HELLO, a command that every user may call."""
    try:
        flat = query("HELLO")
    except ResponseError:
        return
    fields = {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=False)}
    texts = {name: value.decode() for name, value in fields.items() if isinstance(value, bytes)}
    node.server, node.version = texts.get("server"), texts.get("version")
    node.mode, node.role = texts.get("mode"), texts.get("role")


def _read_memory(node: Node, query: Callable[..., Any]) -> None:
    try:
        text = query("INFO", "memory").decode() + query("INFO", "persistence").decode()
    except NoPermissionError:
        return
    fields = dict(line.partition(":")[::2] for line in text.splitlines())
    node.appends = fields["aof_enabled"] == "1" if "aof_enabled" in fields else None
    if fields.get("maxmemory", "").isdecimal():
        node.maxmemory = int(fields["maxmemory"])
    node.maxmemory_policy = fields.get("maxmemory_policy")


def _missing_rights(query: Callable[..., Any], key: str, commands: Sequence[str], *, cluster: bool) -> list[str]:
    """Return the commands that the user may not call. Raises `NoPermissionError` if it may not use the key.

    `commands`: those that scripts call.
    """
    sent: list[tuple[str, tuple[Any, ...]]] = [
        ("script|load", ("SCRIPT", "LOAD", _NOOP_SCRIPT)),
        ("evalsha", ("EVALSHA", "0" * 40, 1, key)),
        ("hmget", ("HMGET", key, "version")),
        ("unlink", ("UNLINK", key)),
    ]
    if cluster:
        sent += [("cluster|slots", ("CLUSTER", "SLOTS")), ("asking", ("ASKING",))]
    try:
        missing = [name.decode() for name in query("EVAL", read_lua("stores/redis/rights"), 1, key, *commands)]
    except NoPermissionError as error:
        if "access" in str(error):
            raise
        missing = ["eval"]
    return sorted([*missing, *(name for name, command in sent if _is_forbidden(query, command))])


def _is_forbidden(query: Callable[..., Any], command: tuple[Any, ...]) -> bool:
    try:
        query(*command)
    except NoPermissionError as error:
        return "access" not in str(error)
    except ResponseError:
        return False
    return False


def _measure_times(node: Node, query: Callable[..., Any]) -> None:
    took, ahead = [], []
    for _ in range(_LATENCY_CALLS):
        since, began = time.perf_counter(), time.time()
        try:
            seconds, microseconds = query("TIME")
        except NoPermissionError:
            return
        took.append(time.perf_counter() - since)
        ahead.append(int(seconds) + int(microseconds) / 1e6 - began - took[-1] / 2)
    node.latency, node.clock_offset = median(took), median(ahead)


def _hash_tag(numbers: Sequence[int] | None) -> str:
    """Return a hash tag for the key of an inspection, in one of these slots."""
    if numbers is None:
        return f"{{{_PROBE_KEY}}}"
    node_slots = frozenset(numbers)
    tags = (f"{{{_PROBE_KEY}-{number}}}" for number in range(1_000_000))
    return next(tag for tag in tags if slot(tag.encode()) in node_slots)


def _warnings(nodes: Sequence[Node], timeout: float) -> Iterable[str]:
    for node in nodes:
        if node.latency is not None and node.latency > timeout:
            yield (
                f"{node.label}: a call takes {node.latency * 1000:.1f} ms, longer than store_timeout: "
                "on_store_error decides requests; raise store_timeout"
            )
        if node.clock_offset is not None and abs(node.clock_offset) > _MAX_CLOCK_DIFFERENCE:
            yield (
                f"{node.label}: its clock differs by {node.clock_offset:+.1f} s from that of this machine; "
                "limits use the clock of the server, so waits change when another server takes over; synchronize "
                "the clocks"
            )
        if node.maxmemory and node.maxmemory_policy not in (None, "noeviction"):
            yield (
                f"{node.label}: maxmemory-policy {node.maxmemory_policy} evicts keys of this store "
                "when memory is full, and their limits start again; set noeviction, or use a separate server"
            )


def _losses(nodes: Sequence[Node]) -> Iterable[str]:
    for node in nodes:
        if node.maxmemory and node.maxmemory_policy not in (None, "noeviction"):
            yield (
                f"{node.label} may evict it, with maxmemory-policy {node.maxmemory_policy}; set noeviction, or use a "
                "separate server"
            )
        if node.appends is False:
            yield f"{node.label} forgets what it counted since its last snapshot when it ends; set appendonly yes"
