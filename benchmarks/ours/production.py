"""Requests as in production: from many clients, behind a proxy, under rules, with and without the middleware."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from itertools import cycle, islice
from time import perf_counter_ns
from typing import Any, Final, Literal

from benchmarks.lab import Lab
from benchmarks.ours import wsgi
from benchmarks.ours.asgi import SCOPE, App, bare, drive, receive
from benchmarks.runner import Batch, Contender, Setup
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.wsgi import RateLimitMiddleware as WsgiMiddleware

MANY: Final = 45_000  # more clients than any cache of this package holds plans for
RULES: Final = 10
PROXY: Final = "127.0.0.1"
QUOTA: Final = 10**6  # per hour
_PATHS: Final = RULES + 2  # two paths have no rule of their own
_FIRST: Final = int(IPv4Address("203.0.0.0"))


@dataclass(frozen=True)
class Scene:
    """The number of clients, whether a trusted proxy forwards their requests, and the number of rules."""

    clients: int
    proxy: bool
    rules: int

    @property
    def name(self) -> str:
        """The part of a row's name for this scene."""
        return f"{self.clients}-{'proxy' if self.proxy else 'direct'}-{self.rules}"

    @property
    def what(self) -> str:
        """The scene in words."""
        clients = f"{self.clients:,} client{'s'[: self.clients > 1]}"
        return f"{clients}, {'behind a proxy' if self.proxy else 'no proxy'}, {self.rules or 'no'} rules"

    def addresses(self) -> Sequence[str]:
        """Return an address for each client."""
        return [str(IPv4Address(_FIRST + number)) for number in range(self.clients)]

    def requests(self) -> Iterator[tuple[str, str]]:
        """Yield the address and the path of a request from each client. Paths differ between clients."""
        for number, address in enumerate(self.addresses()):
            yield address, path(number % _PATHS)

    def settings(self, url: str) -> Mapping[str, Any]:
        """Return the settings of the middleware. `url`: of the store."""
        return {
            "limits": f"{QUOTA}/hour",
            "rules": [{"name": rule(n), "path": template(n), "limits": f"{QUOTA}/hour"} for n in range(self.rules)],
            "trusted_proxies": [PROXY] if self.proxy else [],
            "store": url,
        }


def rule(number: int) -> str:
    """Return the name of a rule."""
    return f"things{number}"


def template(number: int) -> str:
    """Return the path of a rule, as a template."""
    return f"/api/v1/things{number}/{{id}}"


def path(number: int) -> str:
    """Return a path that this rule matches."""
    return f"/api/v1/things{number}/42"


def _scopes(scene: Scene) -> list[Mapping[str, Any]]:
    fields = [*SCOPE["headers"]]
    scopes: list[Mapping[str, Any]] = []
    for address, path_ in scene.requests():
        own = [*fields, (b"x-forwarded-for", address.encode())] if scene.proxy else fields
        client = (PROXY if scene.proxy else address, 52100)
        scopes.append({**SCOPE, "client": client, "path": path_, "raw_path": path_.encode(), "headers": own})
    return scopes


def in_turn(lab: Lab, app: App, scene: Scene) -> Contender:
    """Return a contender that repeats the requests of all clients. Each was sent once before it is timed."""
    scopes = _scopes(scene)
    lab.wait(drive(app, scopes))
    endless = cycle(scopes)

    def batch(calls: int) -> Batch:
        return lab.wait(drive(app, [*islice(endless, calls)]))

    return batch


def floor(scene: Scene) -> Setup:
    """Set up the app without any middleware."""
    return lambda lab: in_turn(lab, bare, scene)


def limited(
    scene: Scene, url: Callable[[Lab], str] = lambda _: "memory://", *, headers: Literal["ietf", "none"] = "ietf"
) -> Setup:
    """Set up the middleware, after checking that it finds client and rule of some requests. `headers`: their style."""

    def setup(lab: Lab) -> Contender:
        app = RateLimitMiddleware(bare, headers=headers, **scene.settings(url(lab)))
        lab.wait(_check(app, scene))
        return in_turn(lab, app, scene)

    return setup


async def _check(app: App, scene: Scene) -> None:
    async def send(_: Any) -> None:
        pass

    keys = set()
    scopes = _scopes(scene)[:_PATHS]
    for number, scope in enumerate(scopes):
        state: dict[str, Any] = {}
        await app({**scope, "state": state}, receive, send)
        verdict = state["ratelimit"].verdict
        wanted = "default" if number >= scene.rules else rule(number)
        assert (verdict.rule, verdict.source) == (wanted, "store"), verdict
        keys.add(verdict.charges[0].key.partition(":")[0])
    assert len(keys) == len(scopes), keys


def _environs(scene: Scene) -> list[dict[str, Any]]:
    environs = []
    for address, path_ in scene.requests():
        own = {"HTTP_X_FORWARDED_FOR": address} if scene.proxy else {}
        remote = PROXY if scene.proxy else address
        environs.append({**wsgi.ENVIRON, "REMOTE_ADDR": remote, "PATH_INFO": path_, **own})
    return environs


def wsgi_in_turn(app: wsgi.App, scene: Scene) -> Contender:
    """Return a contender that repeats the same requests to a WSGI app."""
    environs = _environs(scene)
    endless = cycle(environs)

    def run(these: Sequence[dict[str, Any]]) -> Batch:
        answers = wsgi.Answers()
        start_response = answers.start_response
        started = perf_counter_ns()
        for environ in these:
            wsgi.answer(app, environ, start_response)
        return Batch(perf_counter_ns() - started, answers.admitted, answers.refused)

    run(environs)
    return lambda calls: run([*islice(endless, calls)])


def wsgi_floor(scene: Scene) -> Setup:
    """Set up the WSGI app without any middleware."""
    return lambda _: wsgi_in_turn(wsgi.bare, scene)


def wsgi_limited(scene: Scene, url: Callable[[Lab], str] = lambda _: "memory://") -> Setup:
    """Set up the WSGI middleware."""
    return lambda lab: wsgi_in_turn(WsgiMiddleware(wsgi.bare, **scene.settings(url(lab))), scene)


HARDEST: Final = Scene(MANY, proxy=True, rules=RULES)
EASIEST: Final = Scene(1, proxy=True, rules=RULES)
