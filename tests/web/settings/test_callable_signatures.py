"""Callables in settings are checked at the start: they must accept the arguments that they are called with."""

from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter
from typing import Any

import pytest

from ratelimit_mw import AsyncLimiter, ConfigError, Limiter, MemoryStore, asgi, wsgi
from ratelimit_mw.core.signatures import callable_place
from ratelimit_mw.django import Throttle
from ratelimit_mw.django import limit as django_limit
from ratelimit_mw.fastapi import RateLimit
from ratelimit_mw.flask import limit as flask_limit
from ratelimit_mw.starlette import limit
from web.asgi_talk import App200
from web.wsgi_talk import hello


def nothing() -> str:
    return "x"


def two(request: object, more: object) -> bool:
    return request is more


OF_REQUEST = "it is called with the request: def {}(request)"


def ruled(**words: Any) -> dict[str, Any]:
    return {"rules": [{"path": "/", "limits": "5/hour", **words}]}


LOCATIONS: list[tuple[str, Callable[[Any], dict[str, Any]], str]] = [
    ("key", lambda call: {"key": call}, OF_REQUEST),
    ("tier", lambda call: {"limits": {"a": "5/hour"}, "tier": call}, OF_REQUEST),
    ("limits", lambda call: {"limits": call}, OF_REQUEST),
    ("app_limits", lambda call: {"app_limits": call}, OF_REQUEST),
    ("messages", lambda call: {"messages": call}, OF_REQUEST),
    ("limits[0].key", lambda call: {"limits": [{"limit": "5/hour", "key": call}]}, OF_REQUEST),
    ("limits[0].cost", lambda call: {"limits": [{"limit": "5/hour", "cost": call}]}, OF_REQUEST),
    ("rules[0].key", lambda call: ruled(key=call), OF_REQUEST),
    ("rules[0].cost", lambda call: ruled(cost=call), OF_REQUEST),
    ("rules[0].tier", lambda call: ruled(tier=call), OF_REQUEST),
    ("rules[0].when", lambda call: ruled(when=call), OF_REQUEST),
    ("rules[0].limits", lambda call: ruled(limits=call), OF_REQUEST),
    ("rules[0].messages", lambda call: ruled(messages=call), OF_REQUEST),
    ("safelist[0]", lambda call: {"safelist": [call]}, OF_REQUEST),
    ("blocklist[0]", lambda call: {"blocklist": [call]}, OF_REQUEST),
    ("enabled", lambda call: {"enabled": call}, OF_REQUEST),
    ("on_decision", lambda call: {"on_decision": call}, "it is called with the event: def {}(event)"),
    ("on_store_event", lambda call: {"on_store_event": call}, "it is called with the event: def {}(event)"),
]
SETTLES = [("settle", lambda call: {"settle": call}), ("rules[0].settle", lambda call: ruled(settle=call))]


def problems(settings: dict[str, Any], middleware: Any = asgi.RateLimitMiddleware) -> list[str]:
    app = hello if middleware is wsgi.RateLimitMiddleware else App200()
    with pytest.raises(ConfigError) as caught:
        middleware(app, **{"limits": "9/hour", "store": MemoryStore(), **settings})
    return list(caught.value.problems)


@pytest.mark.parametrize("middleware", [asgi.RateLimitMiddleware, wsgi.RateLimitMiddleware], ids=["asgi", "wsgi"])
@pytest.mark.parametrize(("place", "settings", "called"), LOCATIONS, ids=[place for place, _, _ in LOCATIONS])
def test_each_setting_rejects_callables_with_wrong_parameters(
    place: str, settings: Callable[[Any], dict[str, Any]], called: str, middleware: Any
) -> None:
    for call, taken in ((nothing, "no parameter"), (two, "(request, more)")):
        found = problems(settings(call), middleware)
        assert f"{place}: {call.__name__} takes {taken}; {called.format(call.__name__)}" in found
    named = problems(settings(f"call:{__name__}:nothing"), middleware)
    assert f"{place}: call:{__name__}:nothing takes no parameter; {called.format('nothing')}" in named


@pytest.mark.parametrize(("place", "settings"), SETTLES, ids=["top", "rule"])
def test_settle_must_accept_the_request_and_the_response(place: str, settings: Callable[[Any], dict[str, Any]]) -> None:
    called = "it is called with the request and the response: def nothing(request, response)"
    assert problems(settings(nothing)) == [f"{place}: nothing takes no parameter; {called}"]


def test_callable_among_the_parts_of_a_key_is_checked() -> None:
    text = f"call:{__name__}:nothing"
    assert problems({"key": f"{text} | ip"}) == [f"key: {text} takes no parameter; {OF_REQUEST.format('nothing')}"]


@pytest.mark.parametrize(
    ("call", "taken"),
    [
        (nothing, "no parameter"),
        (lambda *four, third, fourth: (four, third, fourth), "(*four, third, fourth)"),
    ],
)
def test_on_refused_rejects_a_callable_with_other_parameters(call: Any, taken: str) -> None:
    (problem,) = problems({"on_refused": call})
    assert problem.startswith(f"on_refused: got {callable_place(call)}, which takes {taken}, ")
    assert "expected an ASGI app, a WSGI app (environ, start_response), or a callable (request, verdict)" in problem


class Asks:
    def method(self, request: Any) -> str:
        return str(request)

    def __call__(self, request: Any) -> str:
        return str(request)

    @classmethod
    def of_class(cls, request: Any) -> str:
        return str(request)


class AsksNothing:
    def __call__(self) -> str:
        return "x"


def any_number(*_: Any, **__: Any) -> str:
    return "x"


def with_defaults(request: Any, more: int = 1, *, last: str = "x") -> str:
    return f"{request}{more}{last}"


def by_name_only(request: Any, *, last: str) -> str:
    return f"{request}{last}"


def by_name(*, request: Any) -> str:
    return str(request)


def yields(_: Any) -> Iterator[str]:
    yield "x"


@pytest.mark.parametrize(
    "call",
    [
        lambda request: f"{request}",
        Asks(),
        Asks().method,
        Asks.of_class,
        any_number,
        with_defaults,
        partial(two, more=1),
        partial(by_name_only, last="x"),
        partial(two, 1),
        attrgetter("client"),  # written in C, without a signature in some versions
        str,
        max,  # without a signature
    ],
)
def test_callables_that_accept_the_request_are_valid(call: Any) -> None:
    asgi.RateLimitMiddleware(App200(), limits="5/hour", key=call, store=MemoryStore())


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: "x", "takes no parameter; it is called with the request: lambda request: ..."),
        (AsksNothing(), "AsksNothing takes no parameter; it is called with the request: lambda request: ..."),
        (Asks.method, "Asks.method takes (self, request); it is called with the request: def method(request)"),
        (by_name_only, "by_name_only takes (request, *, last); it is called with the request: def by_name_only(r"),
        (by_name, "by_name takes (*, request); it is called with the request: def by_name(request)"),
        (partial(two, 1, 2), "partial takes no parameter; it is called with the request: lambda request: ..."),
        (yields, "got yields, which yields; expected a function that returns its answer"),
    ],
)
def test_error_describes_an_unsuitable_callable(call: Any, problem: str) -> None:
    (found,) = problems({"key": call})
    assert problem in found


@pytest.mark.parametrize("words", [{"key": nothing}, {"cost": nothing}, {"when": nothing}, {"settle": nothing}])
@pytest.mark.parametrize("mark", [limit, flask_limit, django_limit, RateLimit])
def test_limits_on_endpoints_reject_callables_with_wrong_parameters(mark: Any, words: dict[str, Any]) -> None:
    (word,) = words
    with pytest.raises(ConfigError, match=f"^{word}: nothing takes no parameter; it is called with the request"):
        mark("5/minute", **words)


def test_throttle_rejects_a_callable_with_wrong_parameters() -> None:
    with pytest.raises(ConfigError, match=r"^Wrong\.key: nothing takes no parameter; it is called with the request"):
        type("Wrong", (Throttle,), {"limits": "5/minute", "key": staticmethod(nothing)})


@pytest.mark.parametrize("word", ["key", "cost"])
def test_limiter_callables_must_accept_the_arguments_of_the_function(word: str) -> None:
    def fetch(url: str, depth: int = 1) -> str:
        return url * depth

    async def afetch(url: str, depth: int = 1) -> str:
        return url * depth

    options: dict[str, Any] = {word: lambda: 1}
    message = (
        rf"^{word}: .*<lambda> does not accept the arguments of .*fetch, .* parameters \(url: str, depth: int = 1\)"
    )
    with pytest.raises(ConfigError, match=message):
        Limiter().limit("5/minute", **options)(fetch)
    with pytest.raises(ConfigError, match=message):
        AsyncLimiter().limit("5/minute", **options)(afetch)
    taking: tuple[Any, ...] = (
        lambda url: len(url),  # noqa: PLW0108  # its parameter counts
        lambda url, depth: len(url) + depth,
        lambda *_, **__: 1,
        lambda *, url: len(url),
        lambda url, **_: len(url),
    )
    for call in taking:
        Limiter().limit("5/minute", **{word: call})(fetch)
