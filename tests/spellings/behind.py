"""Sends spellings to a server behind a proxy with the service, and finds endpoints reached without their limit."""

import json
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from attacks.wire import Request, send
from spellings.endpoints import MANY, SETTINGS, escaped
from spellings.targets import random_targets

ADMIN: Final = "admin.test"
HOSTS: Final = (ADMIN, "other.test", f"{ADMIN.upper()}:80", f"{ADMIN}.", f"other.test, {ADMIN}", f"{ADMIN}, other.test")
CLIENT: Final = "127.0.0.9"  # not the address of the proxy
HOSTED: Final = ("free", "login")  # endpoints with one more rule for the host ADMIN
NAMED: Final = [  # targets and Host headers that once evaded a rule
    (b"http://admin.test/free", "other.test"),
    (b"http://other.test/free", ADMIN),
    (b"http://admin.test/login", "other.test"),
]
_NAME: Final = re.compile(r'"([^"]*)";q=')
_POLICY: Final = re.compile(rb"^ratelimit-policy: *(.*?)\r?$", re.IGNORECASE | re.MULTILINE)


class Escape(NamedTuple):
    """A spelling with which a framework's endpoint was reached without a charge of its limit in the service."""

    target: bytes
    host: str
    framework: str
    endpoint: str
    charged: frozenset[str]


class Seen(NamedTuple):
    """The result of a run of spellings. `evaded`: those that evaded the middleware inside the app."""

    reached: int
    escapes: list[Escape]
    evaded: list[tuple[bytes, list[str]]]


def settings() -> str:
    """Return the settings of the service: those of all spellings, and rules for a host."""
    plain = {"limits": MANY, "exempt": SETTINGS["exempt"], "trusted_proxies": ["127.0.0.1"]}
    host = {"host": ADMIN, "final": False, "limits": MANY}
    hosted = [{"name": f"{name}-{ADMIN}", "path": f"/{name}", **host} for name in HOSTED]
    return "[[rules]]\n".join(map(_lines, [plain, *hosted, *SETTINGS["rules"]]))


def _lines(options: Mapping[str, Any]) -> str:
    """Return the options as TOML, in which these texts and lists are written as in JSON."""
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in options.items())


def requests(seed: str, count: int) -> Iterator[tuple[bytes, str]]:
    """Yield `count` targets, each with a Host header. Some targets are in absolute form."""
    draw = random.Random(seed)  # noqa: S311  # not a secret
    for target in random_targets(seed, count):
        chosen = b"/free" if draw.random() < 0.1 else target
        if draw.random() < 0.1:
            chosen = f"http://{draw.choice(HOSTS)}".encode() + chosen
        yield chosen, draw.choice(HOSTS)


def run(port: int, spellings: Iterable[tuple[bytes, str]]) -> Seen:
    """Send each spelling to the proxy on this port."""
    count, escapes, evaded = 0, [], []
    for target, host in spellings:
        if not target or b"\r" in target or b"\n" in target:
            continue  # the proxy would read two requests
        reply = send(port, Request("GET", target.decode("latin-1"), [("Host", host)], CLIENT))
        if reply.status != 200:
            continue
        reached, without, hosts = msgspec.json.decode(reply.body)
        policies = b", ".join(_POLICY.findall(reply.head)).decode("latin-1")
        charged = frozenset(_NAME.findall(policies))
        is_admin = [name.lower().partition(":")[0].rstrip(".") for name in hosts] == [ADMIN]
        count += len(reached)
        for framework, endpoint in reached:
            hosted = is_admin and endpoint in HOSTED
            if escaped(endpoint, charged) or (hosted and f"{endpoint}-{ADMIN}" not in charged):
                escapes.append(Escape(target, host, framework, endpoint, charged))
        if without:
            evaded.append((target, without))
    return Seen(count, escapes, evaded)
