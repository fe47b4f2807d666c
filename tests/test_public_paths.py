"""The public API: import paths, names, docstrings and signatures."""

import inspect
import re
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest

import ratelimit_mw
from ratelimit_mw import (
    AsyncLimiter,
    Charge,
    ConfigError,
    Decision,
    Limit,
    Limiter,
    MemoryStore,
    StoreError,
    admin,
    fastapi,
    starlette,
)
from ratelimit_mw.algorithms.ban import Ban
from ratelimit_mw.asgi import RateLimitMiddleware as AsgiMiddleware
from ratelimit_mw.core.limit import Role
from ratelimit_mw.core.verdict import Source
from ratelimit_mw.django import RateLimitMiddleware as DjangoMiddleware
from ratelimit_mw.django import Throttle, exempt, limit
from ratelimit_mw.engine.state import RateLimitState
from ratelimit_mw.flask import RateLimiter
from ratelimit_mw.flask import exempt as flask_exempt
from ratelimit_mw.flask import limit as flask_limit
from ratelimit_mw.metrics import PrometheusCollector
from ratelimit_mw.opentelemetry import instrument
from ratelimit_mw.stores import AsyncStore, Store
from ratelimit_mw.stores.group import Group, committed
from ratelimit_mw.stores.redis import AsyncRedisStore, RedisStore
from ratelimit_mw.stores.sqlite import SQLiteStore
from ratelimit_mw.stores.url import open_async_store, open_store
from ratelimit_mw.testing import Control, RecordingStore, freeze
from ratelimit_mw.testing.blocking import blocking
from ratelimit_mw.testing.laws import LAWS, check_laws
from ratelimit_mw.testing.walks import Step, Walk
from ratelimit_mw.wsgi import RateLimitMiddleware as WsgiMiddleware

ROOT = Path(__file__).resolve().parent.parent

# Every import path that users have, without `ratelimit_mw` in front, and the names that are public there.
NAMES = {
    "": [
        "AsyncLimiter",
        "CalendarWindow",
        "Charge",
        "Concurrency",
        "ConfigError",
        "Decision",
        "FixedWindow",
        "GCRA",
        "LeakyBucket",
        "Limit",
        "Limiter",
        "MemoryStore",
        "RateLimitError",
        "RateLimited",
        "SlidingWindowCounter",
        "SlidingWindowLog",
        "Smooth",
        "StoreError",
        "TokenBucket",
        "Verdict",
        "parse",
    ],
    ".admin": [
        *("Bucket", "Buckets", "Change", "Changes", "Clients", "Keys", "Override", "Overrides", "RefusedClient"),
        *("changes", "clear_override", "keys", "overrides", "peek", "reset", "reset_all", "reset_key", "set_override"),
        "switch",
        *("top", "undo"),
    ],
    ".algorithms.ban": ["Ban"],
    ".core.events": ["DecisionEvent", "StoreEvent"],
    ".asgi": ["RateLimitMiddleware"],
    ".dashboard": ["dashboard", "dashboard_wsgi"],
    ".django": ["RateLimitMiddleware", "Throttle", "exempt", "limit"],
    ".fastapi": ["RateLimit", "RateLimitMiddleware", "exempt", "limit", "openapi_responses", "usage_router"],
    ".flask": ["RateLimiter", "exempt", "limit"],
    ".metrics": ["PrometheusCollector"],
    ".opentelemetry": ["instrument"],
    ".replay": ["Offender", "Report", "RuleResult", "Suggestion", "replay"],
    ".rules": ["Rule"],
    ".service": ["service"],
    ".settings": ["Settings"],
    ".starlette": ["RateLimit", "RateLimitMiddleware", "exempt", "limit"],
    ".stores": ["Answer", "AsyncStore", "Store"],
    ".stores.contract": ["BaseStore", "InPlace"],
    ".stores.group": ["Group", "Outcome", "committed", "cost_to_decide", "decide_group"],
    ".stores.inventory": ["AsyncInventory", "Inventory", "KeyPage", "NumberedRefusal", "Refusal", "RefusalFinder"],
    ".stores.memory": ["MemoryStore"],
    ".stores.redis": ["AsyncRedisStore", "RedisStore"],
    ".stores.sqlite": ["SQLiteStore"],
    ".stores.url": ["open_async_store", "open_store"],
    ".testing": ["Clock", "Control", "RecordingStore", "freeze"],
    ".testing.blocking": ["blocking"],
    ".testing.laws": ["LAWS", "check_laws"],
    ".testing.plugin": [],  # pytest loads the plugin by its entry point
    ".testing.store_suite": ["StoreSuite"],
    ".testing.walks": ["Step", "Walk"],
    ".wsgi": ["RateLimitMiddleware"],
}
PATHS = {f"ratelimit_mw{path}": names for path, names in NAMES.items()}
NO_PATHS = {"ratelimit_mw.refusals", "ratelimit_mw.__version__"}  # a logger's name; a string
USER_FILES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").glob("*.py"))]
INSIDE = ROOT / "docs/explanation"  # pages that explain the code mention names that are not public
IMPORT = re.compile(
    r"^[> \t]*(?:from (ratelimit_mw(?:\.\w+)*) import (\([^)]*\)|[^\n#]*)|import (ratelimit_mw(?:\.\w+)*)\b)",
    re.MULTILINE,
)
MENTION = re.compile(r"\bratelimit_mw(?:\.[A-Za-z_]+)+(?!\w|/|\.(?:py|lua)\b)")

REDIS = "client_or_url, *, prefix='rl:', timeout=0.05, deny_cache=1.0, clock=None"
REQUEST = "request, *, ip=None, user=None, headers=(), host=None"
WHO, WHY = "ip=None, user=None, headers=(), key=None", "note='', by=''"
RULE = "rule=None, limits=None"

SIGNATURES: list[tuple[Any, str]] = [
    (ratelimit_mw.parse, "text"),
    (Limit, "quota, window, *, name=None, keep=0"),
    (ratelimit_mw.TokenBucket, "quota, window, *, name=None, keep=0, burst=None, max_delay=0.0"),
    (ratelimit_mw.GCRA, "quota, window, *, name=None, keep=0, burst=None, max_delay=0.0"),
    (ratelimit_mw.LeakyBucket, "quota, window, *, name=None, keep=0, burst=None, max_delay=0.0, at_once=None"),
    (
        ratelimit_mw.Smooth,
        "quota, window, *, name=None, keep=0, max_burst=1.0, warmup=0.0, cold_factor=3, max_delay=0.0",
    ),
    (ratelimit_mw.FixedWindow, "quota, window, *, name=None, keep=0"),
    (Ban, "quota, window, *, name=None, keep=0, ban"),
    (ratelimit_mw.SlidingWindowLog, "quota, window, *, name=None, keep=0"),
    (ratelimit_mw.SlidingWindowCounter, "quota, window, *, name=None, keep=0, buckets=1, strict=False"),
    (ratelimit_mw.Concurrency, "quota, window=15.0, *, name=None, keep=0, retry=1.0, holder=None"),
    (Charge, "key, limit, cost=1, max_delay=None, role='limit', at=None, lease=0, lease_time=1.0"),
    (Decision, "allowed, limit, remaining, retry_after, next_after, reset_after, delay, at"),
    (MemoryStore, "*, max_keys=1000000, clock=None"),
    (RedisStore, REDIS),
    (AsyncRedisStore, REDIS),
    (admin.peek, f"settings, {REQUEST}"),
    (admin.reset, f"settings, {REQUEST}"),
    (admin.reset_all, "settings, *, rule=None"),
    (admin.reset_key, "settings, key, *, rule=None"),
    (admin.keys, "settings, *, limited=False, key=None, rule=None, most=None"),
    (admin.top, "settings, *, since=3600, most=100"),
    (
        admin.set_override,
        f"settings, *, {WHO}, everyone=False, {RULE}, exempt=False, block=False, duration=86400.0, {WHY}",
    ),
    (admin.overrides, "settings"),
    (admin.clear_override, f"settings, *, id=None, {WHO}, everything=False, {WHY}"),
    (admin.switch, f"settings, state, *, rule=None, duration=86400.0, {WHY}"),
    (admin.changes, "settings"),
    (admin.undo, f"settings, id, *, {WHY}"),
    (SQLiteStore, "path, *, max_keys=1000000, timeout=0.05, deny_cache=1.0, clock=None"),
    (open_store, "url, timeout"),
    (open_async_store, "url, timeout"),
    (Limiter, "store=None, *, name='default', store_timeout=1.0"),
    (AsyncLimiter, "store=None, *, name='default', store_timeout=1.0"),
    (freeze, ""),
    (AsgiMiddleware, "app, settings=None, **options"),
    (WsgiMiddleware, "app, settings=None, **options"),
    (PrometheusCollector, "folder=None"),
    (instrument, "meter_provider=None"),
    (RateLimiter, "app=None, settings=None, **options"),
    (flask_limit, "limits, **options"),
    (flask_exempt, "target"),
    (starlette.RateLimit, "app, limits, **options"),
    (starlette.limit, "limits, **options"),
    (starlette.exempt, "endpoint"),
    (fastapi.RateLimit, "limits, *, store=None, **options"),
    (fastapi.usage_router, "path"),
    (fastapi.openapi_responses, "headers='ietf'"),
    (DjangoMiddleware, "get_response"),
    (Throttle, ""),
    (limit, "limits, **options"),
    (exempt, "view"),
    (Group, "charges"),
    (committed, "charges, decisions"),
    (blocking, "store"),
    (check_laws, "limit, *, walks=200, seed=0"),
    (Walk, "steps, size=1, part=50"),
    (Step, "move, amount, size"),
]
METHODS = [
    (RateLimiter, {"init_app": "self, app", "limit": "limits, **options", "exempt": "target"}),
    (Limit, {"decide": "self, state, now, cost, max_delay", "settle": "self, state, now, delta, at"}),
    (
        Limiter,
        {
            "hit": "self, limits, key, cost=1",
            "peek": "self, limits, key, cost=0",
            "take": "self, *charges",
            "acquire": "self, limits, key, cost=1, timeout=None",
            "turn": "self, limits, key, cost=1, timeout=None",
            "settle": "self, limits, key, delta",
            "reserve": "self, limits, key, cost=1",
            "reset": "self, limits, key",
            "slot": "self, limits, key, cost=1",
            "limit": "self, limits, *, key=None, cost=1, wait=False",
        },
    ),
    (RateLimitState, {"settle": "self, actual", "charge": "self, limits, *, key, cost=1, raises=True"}),
    (Control, {"freeze": "self", "advance": "self, by", "reset": "self"}),
    (Store, {**dict.fromkeys(("take", "peek", "settle", "reset"), "self, charges"), "close": "self"}),
]


def signature(function: Any) -> str:
    """Return the parameters of a function without their types, which mypy checks."""
    parameters = inspect.signature(function).parameters.values()
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    return str(inspect.Signature(bare))[1:-1]


def documented(thing: Any) -> bool:
    """Return whether an object has its own docstring, not that of a base class."""
    return bool(thing.__doc__) and thing.__doc__ not in {base.__doc__ for base in getattr(thing, "__mro__", ())[1:]}


def public(path: str, name: str = "") -> Any:
    return getattr(import_module(path), name) if name else import_module(path)


def imported(text: str) -> set[tuple[str, str]]:
    """Return the paths and names of the package that a text imports, from code or from blocks of a page."""
    found = set()
    for path, names, module in IMPORT.findall(text):
        found |= {(path, name.split(" as ")[0].strip()) for name in names.strip("()").split(",") if name.strip()}
        found |= {(module, "")} if module else set()
    return found


def unlisted(imports: set[tuple[str, str]]) -> list[str]:
    """Return those imports that `PATHS` does not list."""
    return sorted(f"{path} {name}" for path, name in imports if path not in PATHS or name not in ["", *PATHS[path]])


def is_public(mention: str) -> bool:
    """Return whether a dotted name is a listed path, a listed name or an attribute of one."""
    parts = mention.split(".")
    prefixes = {".".join(parts[:length]) for length in range(2, len(parts) + 1)}
    names = {f"{path}.{name}" for path in PATHS for name in PATHS[path]}
    return mention in PATHS or bool(prefixes & (names | NO_PATHS))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


NAMED = [public(path, name) for path in PATHS for name in PATHS[path] if name != "LAWS"]
THINGS = list({id(thing): thing for thing in [*NAMED, *LAWS]}.values())


@pytest.mark.parametrize("path", PATHS)
def test_each_path_can_be_imported(path: str) -> None:
    module = public(path)
    assert [name for name in PATHS[path] if not hasattr(module, name)] == []
    assert set(getattr(module, "__all__", PATHS[path])) == set(PATHS[path])


def test_pytest_plugin_is_a_public_path() -> None:
    loaded = {point.value for point in entry_points(group="pytest11") if point.name == "ratelimit_mw"}
    assert loaded == {"ratelimit_mw.testing.plugin"}
    assert loaded <= set(PATHS)


@pytest.mark.parametrize("file", USER_FILES, ids=name_of)
def test_docs_and_examples_use_only_public_names(file: Path) -> None:
    text = file.read_text("utf-8")
    assert unlisted(imported(text)) == []
    if not file.is_relative_to(INSIDE):
        assert [mention for mention in MENTION.findall(text) if not is_public(mention)] == []


def test_each_form_of_an_import_is_found() -> None:
    text = """
import ratelimit_mw
    from ratelimit_mw.asgi import RateLimitMiddleware as Middleware, Other  # a comment
from ratelimit_mw import (
    Charge,
    Limiter,
)
> from ratelimit_mw.stores import Store
from ratelimit_mw.inner import Gate
from ratelimit_mw_more import Thing
"""
    assert imported(text) == {
        ("ratelimit_mw", ""),
        ("ratelimit_mw.asgi", "RateLimitMiddleware"),
        ("ratelimit_mw.asgi", "Other"),
        ("ratelimit_mw", "Charge"),
        ("ratelimit_mw", "Limiter"),
        ("ratelimit_mw.stores", "Store"),
        ("ratelimit_mw.inner", "Gate"),
    }
    assert unlisted(imported(text)) == ["ratelimit_mw.asgi Other", "ratelimit_mw.inner Gate"]
    mentions = {
        "stores": True,
        "stores.Store": True,
        "stores.Store.take": True,
        "stores.take": False,
        "inner.Gate": False,
    }
    assert {name: is_public(f"ratelimit_mw.{name}") for name in mentions} == mentions


def test_all_lists_every_public_name() -> None:
    named = {name for name, value in vars(ratelimit_mw).items() if not isinstance(value, ModuleType)}
    assert {name for name in named if not name.startswith("_")} == set(ratelimit_mw.__all__)
    assert len(set(ratelimit_mw.__all__)) == len(ratelimit_mw.__all__)


@pytest.mark.parametrize("thing", THINGS, ids=lambda thing: thing.__name__)
def test_every_public_object_has_a_docstring(thing: Any) -> None:
    assert documented(thing)
    for name, member in vars(thing).items() if isinstance(thing, type) else ():
        if not name.startswith(("_", "test_")) and (inspect.isfunction(member) or isinstance(member, property)):
            above = [vars(base)[name] for base in thing.__mro__[1:] if name in vars(base)]
            assert any(method.__doc__ for method in (member, *above)), f"{thing.__name__}.{name}"


@pytest.mark.parametrize(("thing", "expected"), SIGNATURES, ids=lambda value: getattr(value, "__name__", ""))
def test_signatures_match_the_list(thing: Any, expected: str) -> None:
    assert signature(thing) == expected


@pytest.mark.parametrize(("thing", "methods"), METHODS, ids=lambda value: getattr(value, "__name__", ""))
def test_method_signatures_match_the_list(thing: Any, methods: dict[str, str]) -> None:
    assert {name: signature(getattr(thing, name)) for name in methods} == methods


def test_async_methods_have_the_same_arguments_as_sync_methods() -> None:
    for name in ("take", "peek", "settle", "reset", "close"):
        assert signature(getattr(AsyncStore, f"a{name}")) == signature(getattr(Store, name))
        assert inspect.iscoroutinefunction(getattr(AsyncStore, f"a{name}"))
    for name in ("hit", "peek", "take", "acquire", "settle", "reset"):
        assert signature(getattr(AsyncLimiter, name)) == signature(getattr(Limiter, name))
        assert inspect.iscoroutinefunction(getattr(AsyncLimiter, name))
    for name in ("limit", "turn"):
        assert signature(getattr(AsyncLimiter, name)) == signature(getattr(Limiter, name))


@pytest.mark.parametrize(
    ("made", "is_store", "is_async_store"),
    [
        (MemoryStore(), True, True),
        (RecordingStore(), True, True),
        (RedisStore("redis://localhost"), True, False),
        (AsyncRedisStore("redis://localhost"), False, True),
        (object(), False, False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_stores_implement_the_expected_protocols(made: Any, *, is_store: bool, is_async_store: bool) -> None:
    assert (isinstance(made, Store), isinstance(made, AsyncStore)) == (is_store, is_async_store)


def test_errors_share_a_base_class() -> None:
    assert issubclass(ConfigError, ratelimit_mw.RateLimitError)
    assert issubclass(ConfigError, ValueError)
    assert issubclass(StoreError, ratelimit_mw.RateLimitError)
    assert issubclass(ratelimit_mw.RateLimited, ratelimit_mw.RateLimitError)
    assert not issubclass(StoreError, ValueError)


def test_source_and_role_have_the_expected_values() -> None:
    by_store = ("store", "remembered", "local", "allowed_on_error", "denied_on_error", "lease")
    assert get_args(Source) == (*by_store, "latency_goal")
    assert get_args(Role) == ("limit", "shadow", "penalty")


def test_starlette_and_fastapi_share_middleware_and_decorators() -> None:
    assert starlette.RateLimitMiddleware is fastapi.RateLimitMiddleware is AsgiMiddleware
    assert (starlette.limit, starlette.exempt) == (fastapi.limit, fastapi.exempt)
