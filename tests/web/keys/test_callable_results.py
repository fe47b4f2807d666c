"""Callables of the user: `when`, costs, tiers and limits, each with every kind of result."""

import asyncio
import gc
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ratelimit_mw import ConfigError, SlidingWindowCounter, asgi, wsgi
from ratelimit_mw.core import log as notices
from ratelimit_mw.core.signatures import callable_name
from ratelimit_mw.http.request import Request
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings import limits as items
from ratelimit_mw.testing import Clock, RecordingStore
from web.asgi_talk import App200
from web.faces import FACES
from web.messages import message_of
from web.scenario import Answer, Send, Step
from web.wsgi_talk import Server, hello

ALL = pytest.mark.parametrize("face", ["fastapi", "flask", "django async"])  # frameworks never see callables
ASYNC = pytest.mark.parametrize("face", ["starlette", "fastapi", "django async"])


@pytest.fixture(autouse=True)
def said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "_quiet_until", {})


def served(face: str, **settings: Any) -> tuple[Send, RecordingStore]:
    store = RecordingStore(clock=Clock())
    return FACES[face]({"limits": "9/hour", "store": store, **settings}), store


def ruled(**rule: Any) -> dict[str, Any]:
    return {"rules": [{"path": "/", "limits": "10/hour", "name": "ruled", **rule}]}


def says(answer: Any) -> Callable[[Request], Any]:
    def call(request: Request) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return call


def says_later(answer: Any) -> Callable[[Request], Awaitable[Any]]:
    async def call(request: Request) -> Any:
        await asyncio.sleep(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return call


def charged(store: RecordingStore) -> list[tuple[str, int]]:
    return [(charge.key.rpartition(":")[2], charge.cost) for _, charges in store.calls for charge in charges]


# costs

COSTS: list[tuple[Any, int]] = [
    (0, 0), (1, 1), (3, 3), (10, 10), (LookupError(), 1), (None, 1), (-1, 1), (True, 1), (False, 1), (2.0, 2), (0.5, 1),
    (7.5, 8), (9.000001, 10), (0.0, 0), (-0.5, 1), (float("-inf"), 1),
    (float("nan"), 1), (float("inf"), 1), ("3", 1), (b"3", 1), (-(10**400), 1), ([3], 1),
    (object(), 1),
]  # fmt: skip


@ALL
@pytest.mark.promise(9)
@pytest.mark.parametrize(("answer", "cost"), COSTS)
@pytest.mark.parametrize("of", ["rule", "item", "top"])
def test_callable_sets_the_cost_and_invalid_results_cost_one(face: str, of: str, answer: Any, cost: int) -> None:
    item = {"limit": "10/hour", "cost": says(answer)}
    settings: dict[str, Any] = {
        "rule": ruled(cost=says(answer)), "item": ruled(limits=[item]), "top": {"limits": [{**item, "name": "ruled"}]}
    }[of]  # fmt: skip
    send, store = served(face, **settings)
    answered = send(Step())
    assert answered.status == 200
    assert answered.field("ratelimit") == [f'"ruled";r={10 - cost};t=3600']
    assert [cost for _, cost in charged(store)] == [cost]


@ASYNC
@pytest.mark.promise(9)
@pytest.mark.parametrize(("answer", "cost"), COSTS)
def test_async_callable_sets_the_cost_and_invalid_results_cost_one(face: str, answer: Any, cost: int) -> None:
    send, store = served(face, **ruled(cost=says_later(answer)))
    assert send(Step()).status == 200
    assert charged(store) == [("ruled", cost)]


@ALL
def test_request_of_cost_zero_is_sent_to_the_store_and_never_refused(face: str) -> None:
    send, store = served(face, **ruled(cost=says(0), limits="1/hour"))
    assert [send(Step()).status for _ in range(3)] == [200] * 3
    assert charged(store) == [("ruled", 0)] * 3


COST = "rules[0] (ruled).cost"


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    ("cost", "message"),
    [
        (
            11,
            f"{COST}: 11 can never pass 10/3600s using sliding_window_counter, which admits at most 10 at once",
        ),
        (-1, "rules[0] (ruled).cost: got -1, expected a whole number from 0 to 9007199254740991"),
        (True, "rules[0] (ruled).cost: got True, expected a whole number from 0 to 9007199254740991"),
        (1.0, "rules[0] (ruled).cost: got 1.0, expected a whole number from 0 to 9007199254740991"),
        ("2", "rules[0] (ruled).cost: got '2', expected a whole number from 0 to 9007199254740991"),
        ("call:math:pi", "rules[0] (ruled).cost: got 'call:math:pi' of type float, expected a function"),
    ],
)
def test_wrong_cost_setting_is_an_error(cost: Any, message: str) -> None:
    assert message_of(limits=[], **ruled(cost=cost)) == message


@pytest.mark.promise(9)
@pytest.mark.parametrize(("cost", "most"), [(7, 5), (10, 9)], ids=["one tier", "both tiers"])
def test_cost_above_a_tiers_limit_is_an_error_naming_the_first_such_limit(cost: int, most: int) -> None:
    message = message_of(limits=[], tier="user", **ruled(cost=cost, limits={"a": "9/hour", "b": "5/hour"}))
    limit = f"{most}/3600s using sliding_window_counter"
    assert message == f"{COST}: {cost} can never pass {limit}, which admits at most {most} at once"


# when


@ALL
@pytest.mark.promise(9)
@pytest.mark.parametrize(
    ("answer", "names"),
    [
        (True, ["ruled"]), (False, ["default"]), (LookupError(), ["ruled", "default"]), (None, ["ruled", "default"]),
        (0, ["ruled", "default"]), (1, ["ruled", "default"]), ("", ["ruled", "default"]), ([], ["ruled", "default"]),
        (object(), ["ruled", "default"]),
    ],
)  # fmt: skip
def test_when_selects_rule_or_default_limits_and_invalid_results_apply_both(
    face: str, answer: Any, names: list[str]
) -> None:
    send, store = served(face, **ruled(when=says(answer)))
    assert send(Step()).status == 200
    assert charged(store) == [(name, 1) for name in names]


@ALL
@pytest.mark.parametrize("path", ["/login", "//login", "/x/../login/"])
def test_when_of_a_rule_is_called_once_for_all_forms_of_a_path(face: str, path: str) -> None:
    asked: list[str] = []

    def when(request: Request) -> bool:
        asked.append(request.path)
        return True

    rule = {"limits": "5/hour", "when": when}
    rules = [{**rule, "path": "/login"}, {**rule, "path": "/{x:path}"}]
    send, _ = served(face, rules=rules)
    assert send(Step(path=path)).status == 200
    assert asked == [path] * (1 if path == "/login" else 2)


@ALL
def test_when_is_not_called_for_requests_that_its_rule_does_not_match(face: str) -> None:
    asked: list[Request] = []
    rule = {"path": "/a", "methods": ["POST"], "host": "a.test", "limits": "5/hour", "when": asked.append}
    send, _ = served(face, rules=[{"path": "/b", "limits": "5/hour"}, rule])
    for step in (Step(path="/a"), Step(path="/b"), Step(path="/a", method="POST"), Step(path="/c", method="POST")):
        send(step)
    assert asked == []


@ALL
def test_when_sees_the_forwarded_client_address(face: str) -> None:
    seen: list[str | None] = []

    def when(request: Request) -> bool:
        seen.append(request.client)
        return False

    rule = {"path": "/", "limits": "5/hour", "when": when}
    send, _ = served(face, rules=[rule], trusted_proxies=["192.0.2.1"])
    send(Step(headers={"X-Forwarded-For": "203.0.113.9"}))
    assert seen == ["203.0.113.9"]


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    ("when", "message"),
    [
        (says_later(True),
         "rules[0] (ruled).when: got says_later.<locals>.call, which is async; expected a plain function"),
        ("yes", "rules[0] (ruled).when: got 'yes', expected a callable, or call:PACKAGE.MODULE:FUNCTION"),
        (True, "rules[0] (ruled).when: got True, expected a callable, or call:PACKAGE.MODULE:FUNCTION"),
    ],
)  # fmt: skip
def test_wrong_when_setting_is_an_error(when: Any, message: str) -> None:
    assert message_of(limits=[], **ruled(when=when)) == message


# limits

GIVEN: list[tuple[Any, list[tuple[str, int]]]] = [
    ("5/hour", [("ruled", 1)]),
    ("5/hour; 9/day", [("ruled", 1), ("ruled", 1)]),
    (SlidingWindowCounter(5, 60), [("ruled", 1)]),
    ({"limit": "5/hour", "cost": 2}, [("ruled", 2)]),
    (["5/hour", {"limit": "9/day", "cost": 3}], [("ruled", 1), ("ruled", 3)]),
    (("5/hour",), [("ruled", 1)]),
    ([], []),
    ((), []),
    (LookupError(), [("default", 1)]),
    (None, [("default", 1)]),
    (0, [("default", 1)]),
    (False, [("default", 1)]),
    (b"5/hour", [("default", 1)]),
    ({}, [("default", 1)]),
    ({"limit": None}, [("default", 1)]),
    ([[]], [("default", 1)]),
    (["5/hour", None], [("default", 1)]),
    (iter(["5/hour"]), [("default", 1)]),
    ({"5/hour"}, [("default", 1)]),
    ("5/hour; " * 10_000, [("default", 1)]),
    ({"limit": "5/hour", "max_delay": 0}, [("ruled", 1)]),
    ({"limit": "5/hour", "cost": 6}, [("default", 1)]),
    ([items.LimitSpec(limit=SlidingWindowCounter(5, 60), cost=-1)], [("default", 1)]),
    ([items.LimitSpec(limit=SlidingWindowCounter(5, 60), max_delay=2.0)], [("default", 1)]),
    ([items.LimitSpec(limit=None)], [("default", 1)]),  # type: ignore[arg-type]  # on purpose
]


@ALL
@pytest.mark.promise(9)
@pytest.mark.parametrize(("answer", "expected"), GIVEN)
def test_callable_sets_limits_and_invalid_results_apply_the_defaults(
    face: str, answer: Any, expected: list[tuple[str, int]]
) -> None:
    send, store = served(face, **ruled(limits=says(answer)))
    assert send(Step()).status == 200
    assert charged(store) == expected


@ASYNC
@pytest.mark.promise(9)
@pytest.mark.parametrize(("answer", "expected"), GIVEN)
def test_async_callable_sets_limits_and_invalid_results_apply_the_defaults(
    face: str, answer: Any, expected: list[tuple[str, int]]
) -> None:
    send, store = served(face, **ruled(limits=says_later(answer)))
    assert send(Step()).status == 200
    assert charged(store) == expected


@ASYNC
def test_async_callables_set_key_tier_and_app_limits(face: str) -> None:
    send, store = served(
        face,
        plain_keys=True,
        key=says_later("bob"),
        tier=says_later("pro"),
        limits={"free": "9/hour", "pro": "99/hour"},
        app_limits=says_later("999/hour"),
    )
    send(Step())
    ((_, charges),) = store.calls
    assert [(charge.key, charge.limit.quota) for charge in charges] == [
        (f"{{call:{__name__}:says_later.-locals-.call=bob}}:app", 999),
        (f"{{call:{__name__}:says_later.-locals-.call=bob}}:default", 99),
    ]


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    "settings",
    [
        {"key": says_later("bob")},
        {"tier": says_later("a"), "limits": {"a": "5/hour"}},
        {"limits": says_later("5/hour")},
        {"app_limits": says_later("5/hour")},
        ruled(cost=says_later(1)),
        ruled(key=says_later("bob")),
        ruled(limits=says_later("5/hour")),
        ruled(limits=[{"limit": "5/hour", "key": says_later("bob")}]),
        ruled(limits=[{"limit": "5/hour", "cost": says_later(1)}]),
        ruled(limits={"a": "5/hour"}, tier=says_later("a")),
        {"rules": [{"path": "/", "preflight": True, "limits": says_later("5/hour")}]},
    ],
)
def test_wsgi_rejects_async_callables_and_asgi_accepts_them(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        wsgi.RateLimitMiddleware(hello, {"limits": "9/hour", **settings})
    word = str(caught.value).partition(" ")[0].rstrip(":")
    assert word in ("key", "cost", "tier", "limits")
    rules = Settings.of(None, {"limits": "9/hour", **settings}).parsed_rules()
    owner = f" of rule {rules[0].full_name}" if rules else " of app_limits" if "app_limits" in settings else ""
    assert (
        str(caught.value)
        == f"{word}{owner}: got says_later.<locals>.call, which is async; expected a plain function under WSGI"
    )
    asgi.RateLimitMiddleware(App200(), {"limits": "9/hour", **settings})


@pytest.mark.promise(9)
@pytest.mark.parametrize("of", ["key", "cost", "limits", "tier"])
@pytest.mark.parametrize("face", ["flask", "wsgi", "django"])
def test_wsgi_treats_a_returned_awaitable_as_invalid_without_a_warning(
    face: str, of: str, recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices.logger, "disabled", True)  # log records would keep the coroutine alive

    def call(request: Request) -> Any:  # looks like a plain function
        return says_later(5)(request)

    settings: dict[str, Any] = {
        "key": {"key": call},
        "cost": ruled(cost=call),
        "limits": ruled(limits=call),
        "tier": ruled(tier=call, limits={"a": "10/hour", "b": "5/hour"}),
    }[of]
    send, store = served(face, **settings)
    assert send(Step()).status == 200
    assert charged(store) == [("default" if of in ("key", "limits") else "ruled", 1)]
    gc.collect()
    assert [str(warning.message) for warning in recwarn if "never awaited" in str(warning.message)] == []


@ALL
@pytest.mark.promise(9)
def test_failing_callables_are_logged_once_by_name(face: str, caplog: pytest.LogCaptureFixture) -> None:
    def plan_of(request: Request) -> Any:
        return "lots"

    def weight(request: Request) -> Any:
        return "heavy"

    def group(request: Request) -> Any:
        return 1.5

    app_limits = [{"limit": "99/hour", "cost": weight}]
    send, _ = served(face, key=group, app_limits=app_limits, **ruled(limits=plan_of, final=False))
    for _ in range(3):
        send(Step())
    place = "test_failing_callables_are_logged_once_by_name.<locals>"
    assert {message.removeprefix("ratelimit_mw: ").replace(f"{place}.", "") for message in caplog.messages} >= {
        "cost weight: returned str, not a finite number, 0 or more: the request costs 1",
        "key group: returned float, not text: the key counts as missing",
    }
    effect = "the default limits apply, and if these come from the same callable or are [], the request gets 503"
    assert any(f"limits {place}.plan_of: returned no valid limits; {effect}: " in one for one in caplog.messages)
    assert len(caplog.messages) == len(set(caplog.messages)) == 4  # the fourth: the key is missing


@ALL
def test_each_invalid_value_of_a_limits_callable_is_logged(face: str, caplog: pytest.LogCaptureFixture) -> None:
    answers = iter(["lots", "lots", "10/mfoo", "lots"])
    send, _ = served(face, **ruled(limits=lambda _: next(answers)))
    for _ in range(4):
        send(Step())
    assert [re.findall(r"'(lots|10/mfoo)': ", message) for message in caplog.messages] == [["lots"], ["10/mfoo"]]


@ALL
@pytest.mark.parametrize(
    ("cost", "returned"), [(-1, "a negative int"), (True, "bool"), (-0.5, "a negative or infinite float, or nan")]
)
def test_invalid_cost_of_a_callable_is_logged(
    face: str, cost: Any, returned: str, caplog: pytest.LogCaptureFixture
) -> None:
    def refund(request: Request) -> Any:
        return cost

    send, _ = served(face, **ruled(limits="9/hour", cost=refund))
    send(Step())
    name = "test_invalid_cost_of_a_callable_is_logged.<locals>.refund"
    text = f"cost {name}: returned {returned}, not a finite number, 0 or more: the request costs 1"
    assert caplog.messages == [f"ratelimit_mw: {text}"]


@ALL
@pytest.mark.promise(2, 9)
def test_each_callable_is_called_once_per_request(face: str) -> None:
    asked: list[str] = []

    def call(request: Request) -> Any:
        asked.append(request.path)
        return 1

    limits = [{"limit": "10/hour", "cost": call, "key": call}, {"limit": "99/day", "cost": call}]
    send, store = served(face, key=call, **ruled(limits=limits, cost=call, final=False))
    assert send(Step(path="//")).status == 200
    assert asked == ["//"]
    assert len(store.calls) == 1


@pytest.mark.promise(7)
def test_cache_of_callable_results_is_bounded() -> None:
    answers = iter([f"{quota}/hour" for quota in range(1, 10_000)])
    store = RecordingStore(clock=Clock(), max_keys=10)
    app = wsgi.RateLimitMiddleware(hello, limits="9/hour", store=store, **ruled(limits=lambda _: next(answers)))
    (group,) = [lines for lines in app._gate.rule_set.limit_sets if lines.name == "ruled"]
    for _ in range(2100):
        Server().ask(app)
    compiled: Any = group._compiled
    assert compiled.cache_info().currsize == compiled.cache_info().maxsize == 1024
    choice: Any = group._selector
    assert choice._parsed.cache_info().currsize == choice._parsed.cache_info().maxsize == 1024


@ALL
def test_settings_accept_callables_by_import_path(face: str) -> None:
    rule = {
        "path": "/", "name": "ruled", "when": "call:web.scenarios_clients:is_vip",
        "cost": "call:web.scenarios_callables:weight", "limits": "call:web.scenarios_callables:limits_of",
        "key": " call:web.scenarios_clients:plan_of ",
    }  # fmt: skip
    send, store = served(face, rules=[rule], plain_keys=True)
    send(Step(headers={"X-Vip": "1", "X-Weight": "4", "X-Plan": "limit"}))
    ((_, (charge,)),) = store.calls
    assert (charge.key, charge.cost, charge.limit.quota) == ("{call:web.scenarios_clients:plan_of=limit}:ruled", 4, 8)


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("call:web.scenarios_clients:nope", "AttributeError: module 'web.scenarios_clients' has no attribute 'nope'"),
        ("call:nowhere.at:all", "ModuleNotFoundError: No module named 'nowhere'"),
        ("call::f", "ValueError: Empty module name"),
    ],
)
def test_import_path_of_a_missing_callable_is_an_error(name: str, message: str) -> None:
    allowed = f"got {name!r}, expected call:PACKAGE.MODULE:FUNCTION of a function that can be imported: {message}"
    assert message_of(limits=name) == f"limits: {allowed}"
    assert message_of(limits=[], safelist=[name]) == f"safelist[0]: {allowed}"
    assert message_of(limits=[], on_refused=name) == f"on_refused: {allowed}"


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __call__(self, request: Request) -> Any:
        return "1"


def test_unhashable_callable_is_a_wrong_setting() -> None:
    for field in ("key", "limits", "app_limits", "tier"):
        with pytest.raises(ConfigError, match=f"^{field}: got .*, expected a callable that can be hashed: "):
            Settings.of({"limits": [], field: Unhashable()}, {})


def test_object_with_async_call_is_awaited_and_rejected_under_wsgi() -> None:
    class Asks:
        async def __call__(self, request: Request) -> str:
            return "bob"

    with pytest.raises(ConfigError, match=r"key: got .*Asks, which is async; expected a plain function under WSGI"):
        wsgi.RateLimitMiddleware(hello, limits="9/hour", key=Asks())
    send, store = served("starlette", key=Asks(), plain_keys=True)
    answer: Answer = send(Step())
    assert answer.status == 200
    assert store.calls[0][1][0].key.endswith("Asks=bob}:default")


class Incomparable:
    def __eq__(self, other: object) -> bool:
        raise AssertionError(other)

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.promise(9)
@ALL
@pytest.mark.parametrize(
    "answer", [10**5000, -(10**5000), Incomparable(), b"x", [1]], ids=lambda answer: type(answer).__name__
)
@pytest.mark.parametrize("of", ["key", "tier"])
def test_invalid_key_or_tier_result_does_not_fail_the_request(face: str, of: str, answer: Any) -> None:
    tiers = {"limits": {"free": "5/hour", "pro": "9/hour"}, "tier": says(answer), "key": "ip"}
    send, store = served(face, **(tiers if of == "tier" else {"limits": "5/hour", "key": says(answer)}))
    assert send(Step()).status == 200
    assert [name.partition(":")[0] for name, _ in charged(store)] == ["default"]


@ALL
@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        ("Pro", "'Pro'"),
        ("p\no" * 200, repr("p\no" * 200)[:100]),
        (7, "'7'"),
        ("pro", None),
        (None, None),
        ("", None),
        (LookupError(), None),
        (object(), None),
    ],
    ids=["case", "long", "number", "known", "None", "empty", "raised", "no text"],
)
def test_unknown_tier_of_a_callable_is_logged_once(
    face: str, answer: Any, shown: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    def plan(request: Request) -> Any:
        return says(answer)(request)

    tiers = {"limits": {"free": "5/hour", "pro": "9/hour"}, "tier": plan, "key": "ip"}
    send, store = served(face, **tiers)
    assert [send(Step()).status for _ in range(2)] == [200, 200]
    assert {charges[0].limit.quota for _, charges in store.calls} == {9 if answer == "pro" else 5}
    text = f"returned {shown}, expected None or one of free, pro: the tier free applies"
    told = [message for message in caplog.messages if "the tier free applies" in message]
    assert told == ([] if shown is None else [f"ratelimit_mw: tier {callable_name(plan)}: {text}"])


def test_unknown_tier_from_a_header_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    tiers = {"free": "5/hour", "pro": "9/hour"}
    send, _ = served("fastapi", limits=tiers, tier="header:x | ip", key="ip")
    assert send(Step(headers={"X": "Pro"})).status == 200
    assert [text for text in caplog.messages if "applies" in text] == []


@pytest.mark.promise(10)
@ALL
def test_exception_text_of_a_callable_is_not_logged(face: str, caplog: pytest.LogCaptureFixture) -> None:
    """The text may contain client input, as in `QUOTAS[request.headers["x-api-key"]]`."""

    quotas: dict[str, str] = {}

    def quota(request: Request) -> str:
        return quotas[request.headers["x-api-key"]]

    send, _ = served(face, limits="9/hour", rules=[{"path": "/", "limits": quota}])
    assert send(Step(headers={"X-Api-Key": "s3cret"})).status == 200
    assert "s3cret" not in caplog.text
    assert "KeyError; its text is left out" in caplog.text
    assert "in quota" in caplog.text, "the place is told"


@ALL
@pytest.mark.promise(3)
@pytest.mark.parametrize(
    ("options", "cost"),
    [
        ({"limits": "2/hour", "count_status": ["2xx"]}, 1),
        ({"limits": "2/hour", "settle": lambda *_: 1}, 1),
        ({"limits": {"limit": "2/hour", "settle": False}, "count_status": ["2xx"]}, 0),
        ({"limits": "2/hour"}, 0),
    ],
    ids=["count_status", "settle", "not settled", "plain"],
)
def test_a_callable_cannot_make_a_settled_request_free(
    face: str, options: dict[str, Any], cost: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A limit always admits a request that costs 0. A client may cause the 0 by an empty body."""
    send, store = served(face, **ruled(**options, cost=lambda _: 0))
    statuses = [send(Step()).status for _ in range(4)]
    text = "returned 0, which a limit with settle or count_status always admits: the request costs 1"
    assert sum(text in message for message in caplog.messages) == cost
    assert {charge.cost for verb, charges in store.calls if verb == "take" for charge in charges} == {cost}
    assert statuses == ([200, 200, 429, 429] if cost else [200] * 4)
