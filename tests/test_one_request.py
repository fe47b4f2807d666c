"""The names in docs/explanation/architecture.md exist, and a request calls the functions in the order of the page."""

import inspect
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import ratelimit_mw
from ratelimit_mw import StoreError
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.settings.options import Options
from ratelimit_mw.testing import RecordingStore
from web.asgi_talk import HTTP, App200, talk

pytestmark = pytest.mark.one_redis

PAGE = Path(__file__).resolve().parent.parent / "docs/explanation/architecture.md"
PACKAGE = Path(ratelimit_mw.__file__).parent
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
}
LUA = "\n".join(path.read_text("utf-8") for path in PACKAGE.rglob("*.lua"))


def names_in(text: str) -> list[str]:
    return list(dict.fromkeys(re.findall(r"`([^`\n]+)`", text)))


TEXT = PAGE.read_text("utf-8")
NAMES = sorted(names_in(TEXT))
FILES = [name for name in NAMES if "/" in name]
DOTTED = [
    name
    for name in NAMES
    if re.fullmatch(r"[a-z_]+(\.[A-Za-z_]+)+", name) and not name.endswith((".py", ".lua")) and "/" not in name
]
CLASSES = [name for name in NAMES if re.fullmatch(r"([A-Z][a-z]+)+", name)]
WORDS = [name for name in NAMES if re.fullmatch(r"[a-z_]+", name)]
SECTION = TEXT.partition("\n## One request\n")[2].partition("\n## ")[0]
ROWS = dict(re.findall(r"^\| (\w+) \| (.*) \|$", TEXT, flags=re.MULTILINE))  # what a step does on the longer way
STEPS = [
    step + ROWS.get(step.partition(".")[0].strip("*"), "")
    for step in re.split(r"^\d\. ", SECTION, flags=re.MULTILINE)[1:]
]
REDIS = names_in(TEXT.partition("\n## The store's part over Redis\n")[2].partition("\n## ")[0])


def found(name: str, modules: Collection[str] = MODULES) -> Any:
    """Return the object of a dotted name, which starts with the path of a module, or with a unique end of that path."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        path = ".".join(parts[:length])
        fitting = [path] if path in modules else [module for module in modules if module.endswith(f".{path}")]
        assert len(fitting) < 2, f"{path} may be {' or '.join(sorted(fitting))}"
        for module in fitting:
            value: Any = import_module(f"ratelimit_mw.{module}")
            for part in parts[length:]:
                value = getattr(value, part)
            return value
    raise AssertionError(f"{name} is in no module")


def code_of(function: Any) -> CodeType:
    code: CodeType = inspect.unwrap(function).__code__
    return code


def codes_of(name: str) -> set[CodeType]:
    """Return the code of a function, or of a method and its overrides in subclasses. Other names have no code."""
    value = found(name)
    if not inspect.isfunction(value):
        return set()
    owner, method = found(name.rpartition(".")[0]), name.rpartition(".")[2]
    classes = [owner] if inspect.isclass(owner) else []
    for cls in classes:
        classes += cls.__subclasses__()
    return {code_of(value)} | {code_of(getattr(cls, method)) for cls in classes}


FUNCTIONS = {  # of each step of the page, by number
    number: {name: codes for name in names_in(step) if name in DOTTED and (codes := codes_of(name))}
    for number, step in enumerate(STEPS, 1)
}
ALL = {name: codes for functions in FUNCTIONS.values() for name, codes in functions.items()}
STEP = {name: number for number, functions in reversed(FUNCTIONS.items()) for name in functions}


@contextmanager
def tracing(functions: Mapping[str, Collection[CodeType]] = ALL) -> Iterator[list[str]]:
    """Collect those of these functions that this thread calls, in the order of their first calls."""
    names = {code: name for name, codes in functions.items() for code in codes}
    called: list[str] = []

    def trace(frame: FrameType, event: str, _: Any) -> None:
        name = names.get(frame.f_code) if event == "call" else None
        if name is not None and name not in called:
            called.append(name)

    before = sys.getprofile()
    sys.setprofile(trace)
    try:
        yield called
    finally:
        sys.setprofile(before)


def traced(
    count: int = 1, functions: Mapping[str, Collection[CodeType]] = ALL, **settings: Any
) -> tuple[int, list[str]]:
    """Send requests to an app with the middleware. Return the status and the functions of the last request."""
    app = RateLimitMiddleware(App200(), **settings)
    for _ in range(count - 1):
        talk(app, HTTP)
    with tracing(functions) as called:
        answer = talk(app, HTTP)
    return answer.sent[0]["status"], called


@pytest.fixture(scope="module")
def failing() -> RecordingStore:
    store = RecordingStore()
    store.error = StoreError("down")
    return store


REQUESTS: Mapping[str, tuple[int, Mapping[str, Any]]] = {  # expected status, settings
    "the first": (200, {"limits": ["5/minute"]}),
    "admitted": (200, {"limits": ["5/minute"], "count": 2}),
    "refused": (429, {"limits": ["1/minute"], "count": 2}),
    "by user": (200, {"limits": [{"limit": "5/minute", "key": "header:x-user"}]}),
    "without a store": (200, {"limits": ["5/minute"], "on_store_error": "allow", "store": "failing"}),
    "over Redis": (200, {"limits": ["1000/minute"], "store": "redis", "store_timeout": 5.0, "count": 2}),
    "the first over Redis": (200, {"limits": ["1000/minute"], "store": "redis", "store_timeout": 5.0}),
}


def of_kind(kind: str, redis_url: str, failing: RecordingStore) -> tuple[int, list[str]]:
    settings = dict(REQUESTS[kind][1])
    if "store" in settings:
        settings["store"] = {"redis": redis_url, "failing": failing}[settings["store"]]
    return traced(**settings)


@pytest.mark.parametrize("kind", REQUESTS)
def test_requests_call_the_functions_in_the_order_of_the_page(
    kind: str, redis_url: str, failing: RecordingStore
) -> None:
    status, called = of_kind(kind, redis_url, failing)
    assert status == REQUESTS[kind][0]
    steps = [STEP[name] for name in called]
    assert steps == sorted(steps), called
    assert set(steps) == {number for number, functions in FUNCTIONS.items() if functions}


def test_requests_call_every_function_of_the_page(redis_url: str, failing: RecordingStore) -> None:
    called = {name for kind in REQUESTS for name in of_kind(kind, redis_url, failing)[1]}
    assert set(STEP) - called == set()


def test_a_store_on_redis_calls_the_functions_in_the_order_of_the_page(redis_url: str) -> None:
    functions = {name: codes_of(name) for name in REDIS if name in DOTTED}
    _, called = traced(3, functions, limits=["1000/minute"], store=redis_url, store_timeout=5.0)
    assert called == list(functions)


@pytest.mark.parametrize("name", DOTTED)
def test_dotted_name_on_the_page_exists(name: str) -> None:
    found(name)  # raises an error if nothing has this name


@pytest.mark.parametrize("name", CLASSES)
def test_class_on_the_page_exists(name: str) -> None:
    assert any(f"\nclass {name}" in path.read_text("utf-8") for path in PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("name", FILES)
def test_file_on_the_page_exists(name: str) -> None:
    assert (PACKAGE / name).is_file()


@pytest.mark.parametrize("name", WORDS)
def test_a_word_is_a_module_a_setting_or_a_function_in_lua(name: str) -> None:
    assert name in Options.__annotations__ or re.search(rf"\b{name}\.\w+|function {name}\b", LUA) or found(name)


@pytest.mark.parametrize("name", ["policy.plann", "polici.plan", "zzz.plan"])
def test_unknown_names_are_detected(name: str) -> None:
    with pytest.raises((AttributeError, AssertionError)):
        found(name)


def test_module_may_be_named_by_a_unique_end_of_its_path() -> None:
    assert found("memory.MemoryStore") is found("stores.memory.MemoryStore")
    with pytest.raises(AssertionError, match=r"limit may be core[.]limit or engine[.]limit"):
        found("limit.Limit", {"core.limit", "engine.limit"})
