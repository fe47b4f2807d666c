"""The package is small enough to learn: few packages, in layers that import lower ones only, and short modules.

Imports have no cycles, and each framework is imported in one place.
"""

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import ratelimit_mw

PACKAGE = Path(ratelimit_mw.__file__).parent
OURS = "ratelimit_mw."

LAYERS = """
core
metrics algorithms http
stores opentelemetry settings
checks
rules
engine
asgi wsgi admin replay
starlette flask django dashboard
fastapi testing service
cli
"""  # lowest first; packages on one line do not import each other
ROOT = {"__init__", "__main__"}  # re-exports the public names; runs the command line
USED = {
    "admin",
    "dashboard",
    "metrics",
    "opentelemetry",
    "replay",
    "service",
}  # users import these, but the middleware works without
MAX_ENTRIES = 17  # packages that the middleware consists of, so all but `USED`
MAX_LAYERS = 10
MAX_LINES = 400  # of a module

NEVER = {  # besides the layers: imports that a module or package must not have, not even through another module
    "engine.limiter": ["http", "rules"],  # a Limiter works without the web
    "engine.acquire": ["http", "rules"],
    "engine.slots": ["http", "rules"],
}

THIRD_PARTY = {  # every import from outside the standard library, and the only packages or modules that use it
    "msgspec": LAYERS.split(),
    "redis": ["stores.redis"],
    "hiredis": ["stores.redis"],
    "starlette": ["starlette", "fastapi", "cli.demo"],
    "uvicorn": ["cli.dashboard", "cli.demo", "cli.serve", "service.protocol"],
    "grpc": ["service.grpc"],
    "google": ["service.grpc", "service.grpc_messages"],
    "fastapi": ["fastapi"],
    "flask": ["flask"],
    "flask_login": ["flask"],
    "click": ["flask"],
    "werkzeug": ["flask"],
    "django": ["django"],
    "asgiref": ["django"],
    "prometheus_client": ["metrics"],
    "opentelemetry": ["opentelemetry"],
    "pytest": ["testing.plugin", "testing.store_suite"],
}
STANDARD = sys.stdlib_module_names | {"_typeshed", "annotationlib"}  # of type checkers; of Python 3.14 and later

RANK = {package: rank for rank, line in enumerate(LAYERS.strip().splitlines()) for package in line.split()}


def read(folder: Path) -> dict[str, str]:
    """Return the source of each module by its name, which is relative to the package."""
    sources = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        sources[".".join(parts[:-1] if parts[1:] and parts[-1] == "__init__" else parts)] = path.read_text("utf-8")
    return sources


def imports(source: str) -> Iterator[str]:
    """Yield every module that a source imports: at the top, in a function, or under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(module: str, places: list[str]) -> bool:
    return any(module == place or module.startswith(f"{place}.") for place in places)


def graph(sources: dict[str, str]) -> dict[str, set[str]]:
    """Return the modules of the package that each module imports."""
    return {
        module: {name[len(OURS) :] for name in imports(source) if name.startswith(OURS)} & sources.keys() - {module}
        for module, source in sources.items()
    }


def cycle(sources: dict[str, str]) -> list[str]:
    """Return the modules of an import cycle, if there is any."""
    try:
        TopologicalSorter(graph(sources)).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def reached(edges: dict[str, set[str]], start: str) -> set[str]:
    """Return every module that a module imports, directly or through others."""
    found, waiting = {start}, [start]
    while waiting:
        new = edges[waiting.pop()] - found
        found |= new
        waiting += new
    return found - {start}


def violations(sources: dict[str, str]) -> list[str]:
    """Return every import that breaks the layers or the finer rules."""
    found = []
    edges = graph(sources)
    for module, source in sources.items():
        if module in ROOT:
            continue
        package = module.partition(".")[0]
        found += [
            f"{module} imports {other}"
            for other in sorted(edges[module])
            if (target := other.partition(".")[0]) != package and RANK.get(target, len(RANK)) >= RANK[package]
        ]
        for name in dict.fromkeys(imports(source)):
            top = name.partition(".")[0]
            if name == "ratelimit_mw":
                found.append(f"{module} imports the package itself, which imports everything")
            elif not top:
                found.append(f"{module} has a relative import")
            elif name == top and top not in STANDARD | {"ratelimit_mw"}:
                found += [] if within(module, THIRD_PARTY.get(top, [])) else [f"{module} imports {top}"]
            elif top in THIRD_PARTY and not within(module, THIRD_PARTY[top]):
                found.append(f"{module} imports {top}")
        for place, forbidden in NEVER.items():
            bad = sorted(other for other in reached(edges, module) if within(other, forbidden))
            found += [f"{module} reaches {other}" for other in bad if within(module, [place])]
    return list(dict.fromkeys(found))


SOURCES = read(PACKAGE)


def test_every_package_has_a_layer() -> None:
    assert {module.partition(".")[0] for module in SOURCES} - ROOT == set(RANK)
    assert max(RANK.values()) < MAX_LAYERS
    assert set(RANK) > USED
    assert len(RANK.keys() - USED) <= MAX_ENTRIES


def test_no_file_is_too_long() -> None:
    lines = {
        path.relative_to(PACKAGE).as_posix(): path.read_text("utf-8").count("\n")
        for suffix in ("py", "lua")
        for path in PACKAGE.rglob(f"*.{suffix}")
    }
    assert len(lines) > len(RANK)
    assert {name: number for name, number in lines.items() if number > MAX_LINES} == {}


def test_imports_follow_the_layers() -> None:
    assert violations(SOURCES) == []


def test_modules_have_no_import_cycles() -> None:
    assert cycle(SOURCES) == []


@pytest.mark.parametrize(
    ("module", "source", "found"),
    [
        ("core.limit", "from ratelimit_mw.engine.gate import Gate", ["core.limit imports engine.gate"]),
        ("core.limit", "import ratelimit_mw.stores", ["core.limit imports stores"]),
        (
            "core.limit",
            "from ratelimit_mw import Limiter",
            ["core.limit imports the package itself, which imports everything"],
        ),
        ("core.limit", "def f():\n    from ratelimit_mw.stores import url", ["core.limit imports stores"]),
        (
            "core.limit",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ratelimit_mw.http.keys import Key",
            ["core.limit imports http.keys"],
        ),
        ("core.limit", "from .errors import ConfigError", ["core.limit has a relative import"]),
        ("asgi", "from ratelimit_mw.wsgi import RateLimitMiddleware", ["asgi imports wsgi"]),
        ("stores.memory", "import redis", ["stores.memory imports redis"]),
        ("asgi", "from starlette.types import Scope", ["asgi imports starlette"]),
        ("stores.redis.cluster", "import yaml", ["stores.redis.cluster imports yaml"]),
        ("engine.slots", "from ratelimit_mw.rules import plan", ["engine.slots reaches rules"]),
        ("engine.slots", "from ratelimit_mw.engine.gate import Gate", ["engine.slots reaches http.keys"]),
        ("engine.slots", "from ratelimit_mw.core.limit import Limit\nimport math", []),
        ("stores.redis.cluster", "from redis.exceptions import RedisError", []),
    ],
)
def test_a_forbidden_import_is_found(module: str, source: str, found: list[str]) -> None:
    names = ["core.limit", "core.errors", "stores", "stores.memory", "http.keys", "rules", "wsgi"]
    small = dict.fromkeys(names, "") | {"engine.gate": "from ratelimit_mw.http.keys import Key"}
    assert violations(small | {module: source}) == found


def test_a_cycle_is_found() -> None:
    sources = {
        "core.a": "from ratelimit_mw.core.b import B",
        "core.b": "def f():\n    from ratelimit_mw.core.c import C",
        "core.c": "from ratelimit_mw.core.a import A",
    }
    assert set(cycle(sources)) == {"core.a", "core.b", "core.c"}
    assert cycle(sources | {"core.b": ""}) == []
