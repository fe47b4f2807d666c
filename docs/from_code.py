"""Makes parts of the documentation from the code: `python docs/from_code.py` renews them.

- `algorithms`: what Python decides, for the page that draws the algorithms.
- `architecture`: the diagrams, from the imports, and from a trace of one request over Redis and one in memory.
- `promises`: the tests of each promise, from their marks.
- `settings`: the tables of settings, from their types.

With names of parts it renews only these. `--redis URL` names a server for `architecture`; without it the script starts
one. With `--check` it changes nothing, shows what is stale, and returns 1 if anything is.
"""  # noqa: INP001  # not in a package

import argparse
import ast
import asyncio
import contextlib
import inspect
import json
import re
import sys
from collections import Counter
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from random import Random
from types import CodeType, FrameType
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "tests")]

from from_runs import Files, Part, marked, renew  # noqa: E402  # in the folders that were added above

from ratelimit_mw.algorithms import ALGORITHMS  # noqa: E402
from ratelimit_mw.asgi import RateLimitMiddleware  # noqa: E402
from ratelimit_mw.asgi.send import Message  # noqa: E402
from ratelimit_mw.core.limit import Limit  # noqa: E402
from ratelimit_mw.settings.schema import NAMED, STRUCTS, Option, alternatives, options_of  # noqa: E402
from redis_servers import RedisServer, find_binaries  # noqa: E402
from test_layers import RANK, SOURCES, graph  # noqa: E402
from web.asgi_talk import HTTP, START, App200, Talk  # noqa: E402

# The diagrams of explanation/architecture.md

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


def architecture(options: argparse.Namespace) -> Files:
    """The page of the architecture with its diagrams drawn again."""
    with contextlib.ExitStack() as stack:
        if (url := options.redis) is None:
            server = RedisServer(next(iter(find_binaries(ROOT / ".tox" / "redis").values())))
            url = stack.enter_context(server).url
        diagrams = {"packages": package_diagram(), "request": request_diagram(url)}
    page = options.root / "docs/explanation/architecture.md"
    return {page: marked(page.read_text("utf-8"), "diagram", lambda name: f"\n{diagrams[name]}\n")}


# The answers of the algorithms, for _static/algorithms.js

SECOND: Final = 1_000_000
DRAWN: Final = (  # those of algorithms.js
    "fixed_window",
    "sliding_window_counter",
    "sliding_window_log",
    "token_bucket",
    "gcra",
    "leaky_bucket",
    "smooth",
)
BURSTS: Final = ("token_bucket", "gcra", "leaky_bucket")
SHOWN: Final = {  # traffic, by name: the instants in seconds
    "bursts": [0.4 * burst + 8 * pause for pause in range(4) for burst in range(7)],
    "steady, twice the rate": list(range(30)),
    "a rush at the end of a window": [0.0, *(9.0 + 0.2 * number for number in range(5))]
    + [10.2 + 0.2 * number for number in range(5)]
    + [20.0 + 0.4 * number for number in range(8)],
    "too fast all the time": [0.4 * number for number in range(75)],
}


def _scenario(name: str, limit: tuple[int, int, int], instants: Sequence[int], *, shown: bool) -> dict[str, Any]:
    """One traffic, and the answers of each algorithm: admitted, units left, microseconds to wait."""
    quota, window, burst = limit
    return {
        "name": name,
        "shown": shown,
        "limit": {"quota": quota, "window": window, "burst": burst},
        "instants": instants,
        "answers": {kind: _answers(_limit_of(kind, *limit), instants) for kind in DRAWN},
    }


def _limit_of(kind: str, quota: int, window: int, burst: int) -> Limit:
    """The limit of this algorithm; `burst` counts where there is one."""
    options: dict[str, Any] = {"burst": burst} if kind in BURSTS else {}
    return ALGORITHMS[kind](quota, window / SECOND, **options)


def _answers(limit: Limit, instants: Sequence[int]) -> list[list[Any]]:
    """The decisions on one unit at each instant."""
    state, found = None, []
    for now in instants:
        decision, state = limit.decide(state, now, 1, None)
        found.append([decision.allowed, decision.remaining, round(decision.retry_after * SECOND)])
    return found


def algorithms(options: argparse.Namespace) -> Files:
    """The answers of each algorithm to the same traffic, as JavaScript."""
    usual = (5, 10 * SECOND, 5)
    rows = [
        _scenario(name, usual, [round(instant * SECOND) for instant in instants], shown=True)
        for name, instants in SHOWN.items()
    ]
    random = Random(1)  # noqa: S311  # the same traffic each time
    for number in range(8):
        limit = (random.randint(1, 9), random.randint(1, 20) * SECOND, random.randint(1, 9))
        instants = sorted(random.randrange(30 * SECOND) for _ in range(30))
        rows.append(_scenario(f"random {number}", limit, instants, shown=False))
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    text = f"// Made by `python docs/from_code.py algorithms`.\nglobalThis.ratelimitAnswers = [\n{lines}\n];\n"
    return {options.root / "docs/_static/algorithms-answers.js": text}


# The tests of explanation/promises.md

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def marks(nodes: Sequence[ast.expr]) -> set[int]:
    """The numbers of the promises that decorators, or a `pytestmark`, name."""
    calls = [one for node in nodes for one in ast.walk(node) if isinstance(one, ast.Call)]
    return {
        argument.value
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "promise"
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, int)
    }


def held_by(path: Path) -> Counter[int]:
    """How many test functions of a file hold each promise, and rows of its tables that have a mark of their own."""
    return Counter(number for numbers in _tests(ast.parse(path.read_text("utf-8")).body, set()) for number in numbers)


def _tests(body: Sequence[ast.stmt], outer: set[int]) -> Iterator[set[int]]:
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            outer = outer | marks([node.value])
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) != "pytestmark":
            yield from [{number} for row in ast.walk(node.value) if (number := _row(row))]
        if isinstance(node, ast.ClassDef):
            yield from _tests(node.body, outer | marks(node.decorator_list))
        elif isinstance(node, _Function) and node.name.startswith("test"):
            yield outer | marks(node.decorator_list)


def _row(node: ast.AST) -> int | None:
    """The promise of a `pytest.param(..., marks=...)`."""
    given = node.keywords if isinstance(node, ast.Call) else ()
    return next((number for one in given if one.arg == "marks" for number in marks([one.value])), None)


def promises(options: argparse.Namespace) -> Files:
    """The page of promises with new lists of tests."""
    tests = options.root / "tests"
    found = {path.relative_to(tests).as_posix(): held_by(path) for path in sorted(tests.rglob("test_*.py"))}
    page = options.root / "docs/explanation/promises.md"
    return {page: marked(page.read_text("utf-8"), "tests", lambda number: _list(int(number), found))}


def _list(number: int, found: dict[str, Counter[int]]) -> str:
    files = {name: counts[number] for name, counts in found.items() if counts[number]}
    named = ", ".join(f"`{name}` {count}" for name, count in files.items())
    return f"**Its tests**: {sum(files.values())}, in {len(files)} file{'s' if len(files) != 1 else ''}. {named}"


# The tables of reference/settings.md

_SECTIONS: Final = {  # where the page says more of a type that has a name
    "limits": "#limits",
    "key": "../how-to/keys.md",
    "member": "#in-a-member-of-a-list",
    "call": "#callables",
    "rule": "#in-a-rule",
    "item": "#in-a-limit",
    "header": "#in-a-member-of-a-list",
}
_PLAIN: Final[dict[Any, str]] = {str: "text", bool: "true or false", int: "whole number", float: "number"}


def settings(options: argparse.Namespace) -> Files:
    """The page of settings with new tables."""
    tables = {table.__name__: table for table in STRUCTS}
    page = options.root / "docs/reference/settings.md"
    return {page: marked(page.read_text("utf-8"), "table", lambda name: f"\n{_table(tables[name])}")}


def _table(table: Any) -> str:
    rows = ["| name | type | default | meaning |", "|---|---|---|---|", *map(_option, options_of(table))]
    return "".join(f"{row}\n" for row in rows)


def _option(word: Option) -> str:
    required = word.required or word.meaning.startswith("required")
    default = "none" if word.default is None else f"`{json.dumps(word.default)}`"
    meaning = re.sub(r"^required[:,] ", "", word.meaning)
    cells = (f"`{word.name}`", _kind(word.kind), "required" if required else default, meaning)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _kind(kind: Any) -> str:
    """A type in words."""
    if kind in NAMED:
        return _one_kind(kind)
    return " or ".join(_one_kind(one) for one in alternatives(kind))


def _one_kind(kind: Any, plural: str = "") -> str:
    if kind in NAMED:
        name = NAMED[kind]
        return f"[{name}{plural}]({_SECTIONS[name]})"
    if get_origin(kind) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    if get_origin(kind) is not None:
        (of,) = get_args(kind)
        return "list of " + " or ".join(_one_kind(one, "s") for one in ([of] if of in NAMED else alternatives(of)))
    return _PLAIN[kind] + plural


PARTS: Final[Mapping[str, Part]] = {
    "algorithms": algorithms,
    "architecture": architecture,
    "promises": promises,
    "settings": settings,
}

if __name__ == "__main__":
    sys.exit(renew("docs/from_code.py", __doc__, PARTS, sys.argv[1:]))
