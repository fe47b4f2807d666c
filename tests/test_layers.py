"""Imports go up only, and what is not always installed is imported in one place."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import ratelimit_mw

PACKAGE = Path(ratelimit_mw.__file__).parent

# Each module may import those above it. Modules on one line are one layer and stand in their own order.
ORDER = [
    "errors callables kept limit ticks delay bucket verdict stores.group response corrections algorithms.ban",
    "algorithms.fixed_window algorithms.sliding_window_counter algorithms.sliding_window_log algorithms.slot_set",
    "algorithms.concurrency algorithms.token_bucket algorithms.gcra algorithms.leaky_bucket algorithms.smooth",
    "algorithms peers words notation identity notices events background stores stores.forks ledger outcome",
    "stores.live stores.shelf stores.memory stores.patience stores.crew stores.pool stores.scripts stores.parcel",
    "stores.slots stores.talk stores.wrong_url stores.thread_pool stores.thread_wire stores.threads stores.loops",
    "stores.layer stores.batching stores.tasks stores.topology stores.wire stores.rejections stores.redis_server",
    "stores.redis_cluster stores.redis_sentinel stores.deny_cache stores.breaker stores.local stores.lease",
    "stores.later stores.layered stores.redis stores.inspection stores.url waiting holds held blocks functions",
    "limiter addresses forwarded client_ip underscores request views calls settle_options settling following keys",
    "penalties path_index paths hosts routers items choices slots rules reach members toml_lines options sources",
    "settings schema lines vain advice marks policy holding queues turns message_limits matching on_refused",
    "refusals base_gate sync_gate gate faces faces.missing faces.loops faces.asgi_send faces.asgi_follow",
    "faces.asgi_messages faces.asgi_wait faces.remember faces.routes faces.unheeded faces.inside asgi",
    "faces.wsgi_send faces.wsgi_follow wsgi faces.endpoint faces.asked faces.dependencies faces.parameters",
    "faces.route_limits starlette fastapi faces.flask_request faces.flask_marks faces.flask_hooks flask",
    "django.gates django.request django.endpoints django.answers django.middleware django.idle django.throttle",
    "django.checks django.apps django testing.clock testing.control testing.recording testing testing.blocking",
    "testing.walks testing.laws testing.store_suite testing.plugin commands.demo commands.schema commands.inquiry",
    "commands.hearing commands.explain commands.look commands.check commands __main__",
]
RANK = {name: rank for rank, name in enumerate(name for line in ORDER for name in line.split())}
FACES = {"asgi", "wsgi"}  # they do not know each other

DJANGO = ("answers", "apps", "checks", "endpoints", "gates", "idle", "middleware", "request", "throttle")

# Who may import what is not a dependency of the package.
GUESTS = {
    "redis": {"stores.redis", "stores.redis_server", "stores.inspection", "stores.wrong_url"},
    "starlette": {"commands.demo", "starlette", "fastapi"},
    "uvicorn": {"commands.demo"},
    "fastapi": {"fastapi"},
    "flask": {"flask", "faces.flask_hooks", "faces.flask_marks", "faces.flask_request"},
    "flask_login": {"faces.flask_request"},
    "werkzeug": {"faces.flask_hooks"},
    "django": {"django", *(f"django.{part}" for part in DJANGO)},
    "rest_framework": set(),  # the throttle is asked by it, and asks nothing of it
    "hiredis": {"stores.redis_server"},
    "pytest": {"testing.plugin", "testing.store_suite"},
    "hypothesis": set(),
}


def imports(source: str) -> Iterator[str]:
    """Every module that a source names, at the top, in a function, or under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def violations(module: str, source: str) -> list[str]:
    """What in a module's imports breaks the layers."""
    found = []
    for name in imports(source):
        top, _, inner = name.partition(".")
        if top in GUESTS and module not in GUESTS[top]:
            found.append(f"{module} imports {top}")
        if name == "ratelimit_mw":
            found.append(f"{module} imports the package itself, which imports everything")
        if top != "ratelimit_mw" or inner not in RANK or inner == module:
            continue
        if RANK[inner] >= RANK[module] or {inner, module} == FACES:
            found.append(f"{module} imports {inner}")
    return list(dict.fromkeys(found))


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name:  # the package's own __init__ collects what is public
            yield name, path


def test_every_module_has_its_place() -> None:
    assert {name for name, _ in modules()} == set(RANK)


@pytest.mark.parametrize(("name", "path"), list(modules()), ids=[name for name, _ in modules()])
def test_imports_go_up_only(name: str, path: Path) -> None:
    assert violations(name, path.read_text("utf-8")) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from ratelimit_mw.gate import Gate", ["limit imports gate"]),
        ("import ratelimit_mw.verdict", ["limit imports verdict"]),
        (
            "from ratelimit_mw import verdict",
            ["limit imports the package itself, which imports everything", "limit imports verdict"],
        ),
        ("from ratelimit_mw import Limiter", ["limit imports the package itself, which imports everything"]),
        ("def f():\n    from ratelimit_mw.stores.memory import MemoryStore", ["limit imports stores.memory"]),
        (
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ratelimit_mw.request import Request",
            ["limit imports request"],
        ),
        ("import redis", ["limit imports redis"]),
        ("from starlette.types import Scope", ["limit imports starlette"]),
        ("from ratelimit_mw.errors import ConfigError\nimport math", []),
    ],
)
def test_a_planted_violation_is_found(source: str, found: list[str]) -> None:
    assert violations("limit", source) == found
