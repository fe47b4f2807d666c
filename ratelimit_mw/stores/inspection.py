"""What a look at the servers of a store finds: whether they let us in, with which rights, and what they are."""

import time
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from statistics import median
from typing import Any, Final

from msgspec import Struct
from redis.exceptions import NoPermissionError, ResponseError

from ratelimit_mw.errors import StoreError
from ratelimit_mw.stores.patience import LINGER
from ratelimit_mw.stores.redis import probe
from ratelimit_mw.stores.redis_cluster import nodes_of
from ratelimit_mw.stores.redis_sentinel import parts_of
from ratelimit_mw.stores.redis_server import (
    CLUSTER_SCHEMES,
    FAILURES,
    SENTINEL_SCHEMES,
    Source,
    ask_once,
    meaning,
    not_opened,
    source,
)
from ratelimit_mw.stores.rejections import Role
from ratelimit_mw.stores.slots import slot
from ratelimit_mw.stores.talk import FORMAT, drive
from ratelimit_mw.stores.thread_wire import connect
from ratelimit_mw.stores.topology import Address, Errand, Topology

# commands that the scripts call, and those that the store sends; the page on Redis lists them all
ALWAYS: Final = ("get", "pexpire", "set", "time")
OF_SETS: Final = ("zadd", "zcount", "zrange", "zrangebyscore", "zrem", "zremrangebyrank", "zremrangebyscore", "zscore")
SENT: Final = ("eval", "evalsha", "script|load", "unlink")
SENT_TO_CLUSTERS: Final = ("asking", "cluster|slots")
_OTHERS: Final = {  # by mode or role: what is not to be named as one server
    "cluster": "a node of a cluster; begin the store's URL with redis+cluster://",
    "sentinel": "a Sentinel; begin the store's URL with redis+sentinel://",
    "replica": "a replica, which may not write; name the master in the store's URL, or use redis+sentinel://",
}
_SETS: Final = frozenset({"sliding_window_log", "concurrency"})  # algorithms that keep sorted sets
_CALLS: Final = 5  # of which the median is the latency
_CLOCKS: Final = 1.0  # seconds that two clocks may differ
_NOTHING: Final = "return 1"
_KEY: Final = "ratelimit-mw-check"


class Node(Struct, kw_only=True):
    """One server. What could not be found out is None.

    `place`: host and port. `server`, `version`, `mode`, `role`: in the server's own words. `latency`: seconds of a call
    there and back, the median of five. `clock`: seconds that its clock is ahead of ours. `maxmemory`: bytes, 0 is no
    bound. `missing`: commands that its user may not call, and that the limits in use need.
    """

    place: str
    server: str | None = None
    version: str | None = None
    mode: str | None = None
    role: str | None = None
    latency: float | None = None
    clock: float | None = None
    maxmemory: int | None = None
    maxmemory_policy: str | None = None
    missing: list[str] | None = None


class Inspection(Struct):
    """What was found. `mistakes`: what rejects us. `away`: why there was no answer. Both empty: the store works."""

    kind: str
    nodes: list[Node] = []
    mistakes: list[str] = []
    warnings: list[str] = []
    away: list[str] = []

    def add(self, place: str, error: StoreError) -> None:
        """Keep an error: a rejection is a mistake."""
        text = f"{place}: {error}" if place not in str(error) else str(error)
        kept = self.mistakes if error.rejected else self.away
        if text not in kept:
            kept.append(text)


def inspect(url: str, prefix: str, algorithms: Iterable[str], timeout: float) -> Inspection:
    """Connect to the servers of a URL, and look. `timeout`: seconds that a request would wait for them."""
    names = frozenset(algorithms)
    if url.startswith(CLUSTER_SCHEMES):
        found = _cluster(url, prefix, names)
    elif url.startswith(SENTINEL_SCHEMES):
        found = _sentinels(url, prefix, names)
    else:
        found = Inspection("server")
        _look(found, source(url, LINGER), "server", prefix, names)
    if not found.mistakes and not found.away and (error := probe(url, prefix, names)) is not None:
        found.add("store", error)
    found.warnings += _warnings(found.nodes, timeout)
    return found


def _cluster(url: str, prefix: str, names: frozenset[str]) -> Inspection:
    found = Inspection("cluster")
    kind, start = nodes_of(url)
    topology = Topology(start)

    def ask(errand: Errand) -> Any:
        return ask_once(kind.at(errand.address), "cluster", errand.command)

    try:
        drive(topology.look(), ask)
    except StoreError as error:
        found.add("cluster", error)
        return found
    for address, numbers in topology.slots_by_node().items():
        _look(found, kind.at(address), "cluster", prefix, names, numbers)
    return found


def _sentinels(url: str, prefix: str, names: frozenset[str]) -> Inspection:
    found = Inspection("sentinel")
    parts = parts_of(url)
    masters: dict[Address, list[str]] = {}
    for address in parts.sentinels.addresses:
        place = f"Sentinel {address[0]}:{address[1]}"
        try:
            master = drive(
                parts.sentinels.only(address).master(),
                lambda errand: ask_once(parts.asked.at(errand.address), "sentinel", errand.command),
            )
        except StoreError as error:
            if error.rejected:
                found.mistakes.append(str(error))
            else:
                found.warnings.append(f"{error}: the others are asked")
        else:
            masters.setdefault(master, []).append(place)
    if len(masters) > 1:
        known = "; ".join(f"{', '.join(who)} names {host}:{port}" for (host, port), who in masters.items())
        found.warnings.append(f"the Sentinels do not agree where the master is: {known}")
    if masters:
        _look(found, parts.servers.at(next(iter(masters))), "master", prefix, names)
    elif not found.mistakes:
        found.away, found.warnings = found.warnings, []
    return found


def _look(
    found: Inspection,
    where: Source,
    role: Role,
    prefix: str,
    names: frozenset[str],
    numbers: Sequence[int] | None = None,
) -> None:
    """Look at one server, and keep what there is to say. `numbers`: its slots, of a cluster."""
    node = Node(place=where.place)
    found.nodes.append(node)
    if where.tls and str(where.options.get("ssl_cert_reqs")) == "none":
        found.warnings.append(
            f"{node.place}: ssl_cert_reqs=none checks no certificate, so a server in between can read the password; "
            "name the authority with ssl_ca_certs"
        )
    connection = where.connection()

    def ask(*command: Any) -> Any:
        connection.send_command(*command)
        return connection.read_response()

    try:
        connect(connection)
        _what_it_is(node, ask)
        if role == "server" and (other := _OTHERS.get(node.mode or "") or _OTHERS.get(node.role or "")):
            found.mistakes.append(f"{node.place}: it is {other}")
            return
        _memory(node, ask)
        key = f"{prefix}{FORMAT}:{_tag(numbers)}:rights"
        node.missing = _missing(ask, key, names, cluster=numbers is not None)
        _times(node, ask)
    except FAILURES as error:
        problem = not_opened(where, error, role) if not isinstance(error, ResponseError) else _of(error, role)
        found.add(node.place, problem)
    finally:
        connection.disconnect()
    if node.missing:
        rights = " ".join(f"+{name}" for name in node.missing)
        found.mistakes.append(f"{node.place}: the user lacks rights; grant them: ACL SETUSER USER {rights}")


def _of(error: ResponseError, role: Role) -> StoreError:
    found = meaning(error, role)
    return found if isinstance(found, StoreError) else StoreError(f"{type(error).__name__}: {error}")


def _what_it_is(node: Node, ask: Callable[..., Any]) -> None:
    """By HELLO, for which every user has the right."""
    try:
        flat = ask("HELLO")
    except ResponseError:
        return
    said = {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=False)}
    texts = {name: value.decode() for name, value in said.items() if isinstance(value, bytes)}
    node.server, node.version = texts.get("server"), texts.get("version")
    node.mode, node.role = texts.get("mode"), texts.get("role")


def _memory(node: Node, ask: Callable[..., Any]) -> None:
    try:
        text = ask("INFO", "memory").decode()
    except NoPermissionError:
        return
    said = dict(line.partition(":")[::2] for line in text.splitlines())
    if said.get("maxmemory", "").isdecimal():
        node.maxmemory = int(said["maxmemory"])
    node.maxmemory_policy = said.get("maxmemory_policy")


def _missing(ask: Callable[..., Any], key: str, names: frozenset[str], *, cluster: bool) -> list[str]:
    """Rights that the user lacks. Raises what says that nothing can be found out, as the keys are out of reach."""
    text = (files("ratelimit_mw") / "stores" / "rights.lua").read_text("utf-8")
    called = (*ALWAYS, *(OF_SETS if names & _SETS else ()))
    sent: list[tuple[str, tuple[Any, ...]]] = [
        ("script|load", ("SCRIPT", "LOAD", _NOTHING)),
        ("evalsha", ("EVALSHA", "0" * 40, 1, key)),
        ("unlink", ("UNLINK", key)),
    ]
    if cluster:
        sent += [("cluster|slots", ("CLUSTER", "SLOTS")), ("asking", ("ASKING",))]
    try:
        missing = [name.decode() for name in ask("EVAL", text, 1, key, *called)]
    except NoPermissionError as error:
        if "access" in str(error):
            raise
        missing = ["eval"]
    return sorted([*missing, *(name for name, command in sent if _forbids(ask, command))])


def _forbids(ask: Callable[..., Any], command: tuple[Any, ...]) -> bool:
    try:
        ask(*command)
    except NoPermissionError as error:
        return "access" not in str(error)
    except ResponseError:
        return False
    return False


def _times(node: Node, ask: Callable[..., Any]) -> None:
    took, ahead = [], []
    for _ in range(_CALLS):
        since, began = time.perf_counter(), time.time()
        try:
            seconds, microseconds = ask("TIME")
        except NoPermissionError:
            return
        took.append(time.perf_counter() - since)
        ahead.append(int(seconds) + int(microseconds) / 1e6 - began - took[-1] / 2)
    node.latency, node.clock = median(took), median(ahead)


def _tag(numbers: Sequence[int] | None) -> str:
    """A hash tag of our own, in one of these slots."""
    if numbers is None:
        return f"{{{_KEY}}}"
    own = frozenset(numbers)
    tags = (f"{{{_KEY}-{number}}}" for number in range(1_000_000))
    return next(tag for tag in tags if slot(tag.encode()) in own)


def _warnings(nodes: Sequence[Node], timeout: float) -> Iterable[str]:
    for node in nodes:
        if node.latency is not None and node.latency > timeout:
            yield (
                f"{node.place}: a call takes {node.latency * 1000:.1f} ms, longer than store_timeout: "
                "on_store_error decides requests; raise store_timeout"
            )
        if node.clock is not None and abs(node.clock) > _CLOCKS:
            yield (
                f"{node.place}: its clock differs by {node.clock:+.1f} s from that of this machine; "
                "limits go by the clock of the server, so clients feel it when another server takes over; synchronize "
                "the clocks"
            )
        if node.maxmemory and node.maxmemory_policy not in (None, "noeviction"):
            yield (
                f"{node.place}: maxmemory-policy {node.maxmemory_policy} evicts our keys when memory is full, and "
                "limits start anew; set noeviction, or use a server of its own"
            )
