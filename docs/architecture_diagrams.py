"""The diagrams of explanation/architecture.md, drawn from the code: `python docs/architecture_diagrams.py` renews them.

The packages come from their imports, the request from a trace of one over Redis and one in memory. `--redis URL` names
a server; without it the script starts one. With `--check` it changes nothing, shows what is stale, and returns 1 if
anything is.
"""  # noqa: INP001  # not in a package

import argparse
import asyncio
import contextlib
import difflib
import inspect
import re
import sys
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from ratelimit_mw.asgi import RateLimitMiddleware  # noqa: E402
from ratelimit_mw.asgi.send import Message  # noqa: E402
from redis_servers import RedisServer, find_binaries  # noqa: E402  # in the folder that was added above
from test_layers import RANK, SOURCES, graph  # noqa: E402
from web.asgi_talk import HTTP, START, App200, Talk  # noqa: E402

PAGE: Final = ROOT / "docs" / "explanation" / "architecture.md"
RENEW: Final = "python docs/architecture_diagrams.py"
_MARKED: Final = re.compile(r"(<!-- diagram (\w+)[^\n]* -->\n).*?(<!-- end -->)", re.DOTALL)

SERVER, APP, REDIS = "server", "app", "Redis"
STEPS: Final = {  # functions that the diagram of a request shows: the participant that is called, and the text
    "asgi.RateLimitMiddleware.__call__": ("asgi", "__call__()"),
    "engine.entrance.enter_asgi": ("engine", "enter_asgi()"),
    "rules.rule_set.RuleSet.short_way": ("rules", "RuleSet.short_way()"),
    "engine.gate.Gate.take": ("engine", "take()"),
    "engine.gate.AsyncGate.take": ("engine", "take()"),
    "stores.memory.MemoryStore.take": ("stores", "MemoryStore.take()"),
    "core.limit.Limit.decide": ("algorithms", "Limit.decide()"),
    "stores.guarded.AsyncGuardedStore.atake": ("stores", "AsyncRedisStore.atake()"),
    "stores.redis.async_transport.AsyncConnection.send": (REDIS, "{calls[0].command[0]}"),
    "stores.redis.scripts.read_decisions_by_group": ("stores", "the reply"),
    "asgi.RateLimitMiddleware.__call__.send_with_headers": ("asgi", "{message[type]}"),
    "http.response.raw_headers": ("http", "raw_headers()"),
}
CALLBACKS: Final = {REDIS: "stores", "stores": REDIS, "asgi": SERVER}  # what calls these from the event loop
SETTINGS: Final = {"limits": [], "rules": [{"path": "/", "limits": "1000000/minute"}]}
MEMORY: Final = "memory://"


class Arrow(NamedTuple):
    """One call, from participant to participant, with its result where that is a type of the package."""

    source: str
    target: str
    text: str


class _Call:
    """A call under way."""

    def __init__(self, source: str, target: str, text: str) -> None:
        self.source, self.target, self.text, self.result = source, target, text, ""


class _Server(Talk):
    """A server whose `send` acts when it is called, so that the trace finds the caller."""

    def send(self, message: Message) -> Awaitable[None]:  # type: ignore[override]
        """Keep the message."""
        self.sent.append(message)
        return asyncio.sleep(0)


class Tracer:
    """Records the calls of the functions in `STEPS`, and of the app and the server around them."""

    def __init__(self, app: object, server: _Server) -> None:
        self._steps = {code: step for name, step in STEPS.items() for code in _codes(name)}
        self._steps[type(app).__call__.__code__] = (APP, "the app")
        self._steps[type(server).send.__code__] = (SERVER, "{message[type]}")
        self._calls: dict[FrameType, _Call] = {}

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Record what this thread calls."""
        sys.setprofile(self._trace)
        try:
            yield
        finally:
            sys.setprofile(None)

    def arrows(self) -> list[Arrow]:
        """The calls in order."""
        return [Arrow(call.source, call.target, call.text + call.result) for call in self._calls.values()]

    def _trace(self, frame: FrameType, event: str, result: Any) -> None:
        if (step := self._steps.get(frame.f_code)) is None:
            return
        if event == "call" and frame not in self._calls:  # a coroutine is called again when it goes on
            target, text = step
            self._calls[frame] = _Call(self._caller(frame, target), target, text.format_map(frame.f_locals))
        elif event == "return":
            self._calls[frame].result = _shown(result)

    def _caller(self, frame: FrameType, target: str) -> str:
        """The participant whose call is the nearest around a frame."""
        outer = frame.f_back
        while outer is not None and outer not in self._calls:
            outer = outer.f_back
        return CALLBACKS[target] if outer is None else self._calls[outer].target


def _codes(name: str) -> set[CodeType]:
    """The code of a function by its dotted name; of a method, also where subclasses override it."""
    module = next(start for start in _starts(name) if start in SOURCES)
    owner: Any = import_module(f"ratelimit_mw.{module}")
    *path, last = name.removeprefix(f"{module}.").split(".")
    for part in path:
        owner = getattr(owner, part)
    if inspect.isfunction(owner):
        return {one for one in owner.__code__.co_consts if inspect.iscode(one) and one.co_name == last}
    owners = [owner]
    for one in owners:
        owners += one.__subclasses__() if inspect.isclass(one) else []
    return {inspect.unwrap(getattr(one, last)).__code__ for one in owners}


def _starts(name: str) -> Iterator[str]:
    """The starts of a dotted name, the longest first."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def _shown(result: Any) -> str:
    """The type of a result, or of the first value in it, if it is one of this package."""
    plural = ""
    while isinstance(result, (list, tuple)) and result:
        plural = "s" if isinstance(result, list) else plural
        result = result[0]
    kind = type(result)
    return f" → {kind.__name__}{plural}" if kind.__module__.startswith("ratelimit_mw.") else ""


async def _traced(store: str) -> list[Arrow]:
    """Send two requests to a limited app; trace the second, which finds an open connection and a loaded script."""
    inner = App200(START)
    app = RateLimitMiddleware(inner, store=store, store_timeout=5.0, **SETTINGS)
    await Talk().with_app(app, HTTP)
    server = _Server()
    tracer = Tracer(inner, server)
    with tracer.tracing():
        await app(dict(HTTP), server.receive, server.send)
    return tracer.arrows()


def request_diagram(redis_url: str) -> str:
    """A sequence diagram of one request; where the two stores differ it shows both."""
    memory, redis = (asyncio.run(_traced(store)) for store in (MEMORY, redis_url))
    before = _shared(memory, redis)
    after = _shared(memory[: before - 1 : -1], redis[: before - 1 : -1])
    in_memory, over_redis = memory[before : len(memory) - after], redis[before : len(redis) - after]
    lines = [
        *_lines(memory[:before]),
        "alt in memory",
        *_lines(in_memory),
        "else over Redis",
        *_lines(over_redis),
        "end",
        *_lines(memory[len(memory) - after :]),
    ]
    seen = dict.fromkeys(name for arrow in [*memory, *redis] for name in arrow[:2])
    names = sorted(seen, key=lambda name: (name == REDIS, name != SERVER, name != APP, -RANK.get(name, 0)))
    participants = [f"participant {name}" for name in names]
    return _fence("sequenceDiagram", ["autonumber", *participants, *lines])


def _shared(one: Sequence[Arrow], other: Sequence[Arrow]) -> int:
    """How many arrows two lists begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _lines(arrows: Sequence[Arrow]) -> list[str]:
    return [f"{arrow.source}->>{arrow.target}: {arrow.text}" for arrow in arrows]


def package_imports() -> dict[str, set[str]]:
    """The packages that each package imports."""
    found: dict[str, set[str]] = {package: set() for package in RANK}
    for module, others in graph(SOURCES).items():
        package = module.partition(".")[0]
        if package in found:
            found[package] |= {other.partition(".")[0] for other in others} - {package}
    return found


def direct(edges: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The same edges without those that a longer way replaces."""
    reach: dict[str, set[str]] = {}

    def reached(package: str) -> set[str]:
        if package not in reach:
            reach[package] = edges[package].union(*map(reached, edges[package]))
        return reach[package]

    return {package: others - {far for near in others for far in reached(near)} for package, others in edges.items()}


def package_diagram() -> str:
    """A flowchart of the packages, the highest first."""
    edges = direct(package_imports())
    packages = sorted(edges, key=lambda package: (-RANK[package], list(RANK).index(package)))
    arrows = [f"{one} --> {other}" for one in packages for other in packages if other in edges[one]]
    return _fence("flowchart TD", arrows)


def _fence(kind: str, lines: Sequence[str]) -> str:
    return "\n".join(["```mermaid", kind, *(f"    {line}" for line in lines), "```"])


def renewed(text: str, redis_url: str) -> str:
    """The text of the page with its diagrams drawn again."""
    diagrams = {"packages": package_diagram(), "request": request_diagram(redis_url)}
    return _MARKED.sub(lambda found: f"{found[1]}\n{diagrams[found[2]]}\n\n{found[3]}", text)


def main(arguments: Sequence[str]) -> int:
    """Renew the page; or with `--check` show by what it is stale. Returns the exit code."""
    parser = argparse.ArgumentParser(description="Renew the diagrams of explanation/architecture.md.")
    parser.add_argument("--check", action="store_true", help="change nothing; return 1 if the page is stale")
    parser.add_argument("--redis", metavar="URL", help="a Redis server, instead of one started for this")
    options = parser.parse_args(arguments)
    before = PAGE.read_text("utf-8")
    with contextlib.ExitStack() as stack:
        if options.redis is None:
            server = RedisServer(next(iter(find_binaries(ROOT / ".tox" / "redis").values())))
            options.redis = stack.enter_context(server).url
        after = renewed(before, options.redis)
    if not options.check:
        PAGE.write_text(after, "utf-8")
        return 0
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), PAGE.name, "from the code", lineterm="")
    if stale := list(lines):
        sys.stdout.write("\n".join([*stale, f"The page is stale. This renews it: {RENEW}", ""]))
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
