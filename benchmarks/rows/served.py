"""Rows of the requests per second of a Starlette app under uvicorn, with and without a limit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks import web
from benchmarks.lab import Lab, Missing, package
from benchmarks.line import Line
from benchmarks.ours.served import bare, limited, starlette
from benchmarks.runner import Batch, Contender, Row, turns
from benchmarks.served import Server, ask, bursts, microseconds, rate, started
from benchmarks.trees import Tree
from benchmarks.web import IETF, LEGACY, NONE

_ROUNDS: Final = 21  # at most, because a round lasts a second per contender


def asgi_ratelimit(quota: str, url: str) -> Any:
    """Return an app with asgi-ratelimit, in memory or with Redis."""
    ratelimit = package("ratelimit", "asgi-ratelimit")
    if url.startswith("redis"):
        client = package("redis.asyncio").StrictRedis.from_url(url)
        backend = package("ratelimit.backends.redis", "asgi-ratelimit").RedisBackend(client)
    else:
        backend = package("ratelimit.backends.simple", "asgi-ratelimit").MemoryBackend()

    async def who(scope: Any) -> tuple[str, str]:  # its buckets do not depend on the limit
        return f"{scope['client'][0]} {quota}", "default"

    app = starlette()
    rules = {r"^/": [ratelimit.Rule(hour=int(quota))]}
    app.add_middleware(ratelimit.RateLimitMiddleware, authenticate=who, backend=backend, config=rules)
    return app


def slowapi(quota: str, url: str) -> Any:
    """Return an app with slowapi's ASGI middleware and headers."""
    who = package("slowapi.util").get_remote_address
    app = starlette()
    app.state.limiter = package("slowapi").Limiter(
        who, default_limits=[f"{quota}/hour"], headers_enabled=True, storage_uri=url
    )
    app.add_middleware(package("slowapi.middleware").SlowAPIASGIMiddleware)
    return app


_PEERS: Final = {"asgi-ratelimit": ("ratelimit", asgi_ratelimit, NONE), "slowapi": ("slowapi", slowapi, LEGACY)}


@dataclass(frozen=True, kw_only=True)
class Served:
    """Rows of the requests per second of the app with this package's limit, over those without any limit.

    `over`: peers, and the minimum of this package's requests per second over theirs in the same run; None for no
    minimum. Another row for each peer shows its requests per second over those without any limit.
    """

    name: str
    redis: bool  # else in memory
    target: float
    over: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def what(self) -> str:
        """What is measured."""
        return f"requests/s under uvicorn over {'Redis' if self.redis else 'memory'}"

    def run(self, lab: Lab) -> Sequence[Line]:
        """Return a line for the limit, and two for each peer."""
        contenders: dict[str, Contender] = {}
        missing: dict[str, str] = {}
        try:
            url = lab.redis_url() if self.redis else "memory://"
            contenders["bare"] = bursts(_server(lab, bare, web.PLENTY, url))
            contenders["ours"] = bursts(_limited(lab, limited, url, IETF))
            for peer in self.over:
                module, make, fields = _PEERS[peer]
                try:
                    package(module, peer)
                    contenders[peer] = bursts(_limited(lab, make, url, fields))
                except Missing as reason:
                    missing[peer] = f"skipped, {reason}"
        except Missing as reason:
            return [self._line("", "ours", "bare", {}, self.target, f"skipped, {reason}")]
        batches = turns(lab, contenders, 0, min(lab.rounds, _ROUNDS))
        lines = [self._line("", "ours", "bare", batches, self.target)]
        for peer, least in self.over.items():
            lines.append(self._line(f"-over-{peer}", "ours", peer, batches, least, missing.get(peer, "")))
            lines.append(self._line(f"-{peer}", peer, "bare", batches, None, missing.get(peer, "")))
        return lines

    def _line(
        self,
        suffix: str,
        mine: str,
        other: str,
        batches: Mapping[str, Sequence[Batch]],
        least: float | None,
        note: str = "",
    ) -> Line:
        there = mine in batches and other in batches
        numerator, denominator = (batches[mine], batches[other]) if there else ((), ())
        return Line(
            row=f"{self.name}{suffix}",
            what=f"{self.what}: {mine} / {other}",
            values=tuple(rate(a) / rate(b) for a, b in zip(numerator, denominator, strict=True)),
            ours=microseconds(numerator),
            peer=microseconds(denominator),
            target=least,
            at_least=True,
            admitted=sum(batch.admitted for batch in numerator),
            refused=sum(batch.refused for batch in numerator),
            notes=(note,) if note else (),
            problems=tuple(f"{mine}: {batch.refused} refused, not 0" for batch in numerator if batch.refused),
        )


@dataclass(frozen=True, kw_only=True)
class ServedByTrees:
    """A row of the time per request of the limited app under uvicorn, with one tree's package over another's."""

    name: str
    redis: bool  # else in memory
    ours: Tree
    peer: Tree

    @property
    def what(self) -> str:
        """What is measured."""
        return f"a request under uvicorn over {'Redis' if self.redis else 'memory'}"

    def run(self, lab: Lab) -> Sequence[Line]:
        """Return one line."""
        try:
            contenders = {
                name: bursts(_limited(lab, limited, self._url(lab, database), IETF, folder=tree.folder))
                for database, (name, tree) in enumerate((("ours", self.ours), ("peer", self.peer)))
            }
        except Missing as reason:
            return [Line(row=self.name, what=self.what, notes=(f"skipped, {reason}",))]
        batches = turns(lab, contenders, 0, min(lab.rounds, _ROUNDS))
        return [
            Line(
                row=self.name,
                what=self.what,
                values=tuple(
                    rate(peer) / rate(ours) for ours, peer in zip(batches["ours"], batches["peer"], strict=True)
                ),
                ours=microseconds(batches["ours"]),
                peer=microseconds(batches["peer"]),
                admitted=sum(batch.admitted for batch in batches["ours"]),
                refused=sum(batch.refused for batch in batches["ours"]),
                problems=tuple(
                    f"{name}: {batch.refused} refused, not 0"
                    for name, each in batches.items()
                    for batch in each
                    if batch.refused
                ),
            )
        ]

    def _url(self, lab: Lab, database: int) -> str:
        """Return the URL of a store. Each tree has its own database, so that they share no buckets."""
        return f"{lab.redis_url().removesuffix('/0')}/{database}" if self.redis else "memory://"


def _server(lab: Lab, make: Any, quota: int, url: str, folder: Path | None = None) -> Server:
    return started(lab, f"{make.__module__}:{make.__name__}", quota, url, folder=folder)


def _limited(lab: Lab, make: Any, url: str, fields: frozenset[str], folder: Path | None = None) -> Server:
    return web.held(lambda quota: _server(lab, make, quota, url, folder), ask, fields)


ROWS: Final[Sequence[Row]] = [
    Served(name="served-memory", redis=False, target=0.84, over={"asgi-ratelimit": 1.0, "slowapi": None}),
    Served(name="served-redis", redis=True, target=0.72, over={"asgi-ratelimit": None, "slowapi": None}),
]
