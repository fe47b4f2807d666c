"""Tests limits that are attached to endpoints, without any framework."""

import functools
import logging
from collections.abc import Callable
from typing import Any

import pytest

from ratelimit_mw import ConfigError, MemoryStore
from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.engine.gate import Gate
from ratelimit_mw.http.request import Request
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.endpoint_limits import EndpointLimit, bucket_for, limits_on, name_for
from ratelimit_mw.testing import Clock, RecordingStore
from web.plain_request import PlainRequest


def view() -> None:
    """An endpoint."""


def keeping(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper() -> Any:
        return function()

    return wrapper


def gate(store: RecordingStore, **settings: Any) -> Gate:
    return Gate(Settings.of({"limits": "9/minute", "store": store, "plain_keys": True, **settings}, {}))


def ask(one: Gate, marks: tuple[EndpointLimit, ...], request: Request | None = None) -> Verdict | None:
    return one.admit(request or PlainRequest("/"), one.rule_set.compile_endpoint_limits(marks, "shop.views.login"))


def taken(store: RecordingStore) -> list[list[str]]:
    return [[f"{charge.key} {charge.limit.quota}" for charge in charges] for _, charges in store.calls]


def test_limits_on_finds_a_limit_through_wrappers() -> None:
    def plain() -> None: ...

    mark = EndpointLimit("5/minute")
    assert mark.attach(plain) is plain
    assert limits_on(keeping(keeping(plain))) == (mark,)


def test_a_limit_attached_to_a_wrapper_is_found_on_the_wrapped_function() -> None:
    def plain() -> None: ...

    mark = EndpointLimit("5/minute")
    mark.attach(keeping(plain))
    assert limits_on(plain) == (mark,)


def test_limits_are_listed_outermost_first() -> None:
    def plain() -> None: ...

    lower, upper = EndpointLimit("5/minute"), EndpointLimit("50/hour")
    upper.attach(keeping(lower.attach(plain)))
    assert limits_on(plain) == (upper, lower)
    assert limits_on(view) == limits_on(7) == ()


def test_a_subclass_inherits_limits_and_lists_its_own_first() -> None:
    class Base: ...

    class View(Base): ...

    base, own = EndpointLimit("5/minute"), EndpointLimit("50/hour")
    base.attach(Base)
    own.attach(View)
    assert limits_on(Base) == (base,)
    assert limits_on(View) == (own, base)


def test_a_limit_on_one_view_of_a_class_does_not_apply_to_its_other_views() -> None:
    class View:
        """A view of Flask or Django."""

    def viewing() -> Any:
        def seen() -> None: ...

        seen.view_class = View  # type: ignore[attr-defined]  # as both frameworks do
        return seen

    one, other = viewing(), viewing()
    own, shared = EndpointLimit("5/minute"), EndpointLimit("50/hour")
    own.attach(one)
    shared.attach(View)
    assert (limits_on(one), limits_on(other)) == ((shared, own), (shared,))


def test_decorators_that_merge_attributes_keep_all_limits() -> None:
    """Django's method_decorator copies the attributes of a placeholder, then those of the method over them."""

    def method() -> None: ...

    def stand_in() -> None: ...

    def wrapper() -> None: ...

    lower, upper = EndpointLimit("5/minute"), EndpointLimit("50/hour")
    lower.attach(method)
    upper.attach(stand_in)
    functools.update_wrapper(wrapper, stand_in)
    functools.update_wrapper(wrapper, method)
    assert limits_on(wrapper) == (upper, lower)


def test_attaching_a_limit_again_adds_nothing() -> None:
    def plain() -> None: ...

    mark = EndpointLimit("5/minute")
    attributes = [len(vars(mark.attach(plain))) for _ in range(3)]
    assert attributes == [1, 1, 1]


def test_a_limit_with_deep_false_does_not_apply_to_the_wrapped_function() -> None:
    def plain() -> None: ...

    mark = EndpointLimit("5/minute")
    outer = mark.attach(keeping(plain), deep=False)
    assert (limits_on(outer), limits_on(plain)) == ((mark,), ())


def test_limits_on_finds_limits_through_partials_methods_and_instances() -> None:
    class View:
        def method(self) -> None: ...

    on_class, on_method = EndpointLimit("5/minute"), EndpointLimit("50/hour")
    on_class.attach(View)
    on_method.attach(View.method)
    assert limits_on(View()) == (on_class,)
    assert limits_on(View().method) == limits_on(functools.partial(View().method)) == (on_method,)


@pytest.mark.parametrize("endpoint", [len, int, Clock().advance, 5], ids=["built in", "a built-in class", "bound", "5"])
def test_attaching_a_limit_to_an_unsupported_object_raises_a_type_error(endpoint: Any) -> None:
    with pytest.raises(TypeError, match="a limit is attached to a function or a class; got "):
        EndpointLimit("5/minute").attach(endpoint)


@pytest.mark.parametrize(
    ("limits", "options", "message"),
    [
        ("5/minut", {}, "limits: '5/minut': unknown period 'minut', did you mean 'minute'?"),
        ("5/minute", {"kye": "ip"}, "unknown setting `kye`: did you mean `key`?"),
        ("5/minute", {"path": "/"}, "unknown setting `path`"),
        ("5/minute", {"key": "cookie"}, "key: got 'cookie'"),
        ("5/minute", {"cost": 6}, "cost: 6 can never pass 5/60s using sliding_window_counter"),
        ("5/minute; 5/minute", {}, "limits[1]: 5/60s using sliding_window_counter can count in the same bucket"),
        ({"free": "5/minute"}, {}, "limits: got limits by tier (free), which need `tier`"),
        ("5/minute", {"name": "default"}, "name: got 'default'"),
    ],
)
def test_invalid_options_raise_config_errors_at_construction(
    limits: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as told:
        EndpointLimit(limits, **options)
    assert message in str(told.value)


async def later(_: Request) -> str:
    return "x"


@pytest.mark.parametrize("options", [{"key": later}, {"cost": later}])
def test_reject_async_callables_raises_for_async_options(options: dict[str, Any]) -> None:
    mark = EndpointLimit("5/minute", **options)
    with pytest.raises(ConfigError, match="got later, which is async"):
        mark.reject_async_callables()
    assert EndpointLimit("5/minute").reject_async_callables().rule.limits == "5/minute"


def test_endpoint_limits_replace_default_limits_but_not_rules_or_app_limits(store: RecordingStore) -> None:
    rule = {"path": "/", "limits": "7/minute", "name": "root"}
    one = gate(store, app_limits="8/minute", rules=[rule])
    ask(gate(store), (EndpointLimit("5/minute"),))
    ask(one, (EndpointLimit("5/minute"),))
    client = "{ip=192.0.2.1}:"
    own = f"{client}@shop.views.login() 5"
    assert taken(store) == [[own], [f"{client}app 8", f"{client}root 7", own]]


def test_non_final_and_shadow_limits_keep_the_default_limits(store: RecordingStore) -> None:
    ask(gate(store), (EndpointLimit("5/minute", final=False),))
    ask(gate(store), (EndpointLimit("5/minute", shadow=True),))
    own, default = "{ip=192.0.2.1}:@shop.views.login() 5", "{ip=192.0.2.1}:default 9"
    assert taken(store) == [[own, default]] * 2


@pytest.mark.promise(9)
def test_an_exemption_skips_only_the_default_limits(store: RecordingStore) -> None:
    assert ask(gate(store), (EndpointLimit.exemption(),)) is None
    ask(gate(store, app_limits="8/minute"), (EndpointLimit.exemption(), EndpointLimit("5/minute")))
    assert taken(store) == [["{ip=192.0.2.1}:app 8", "{ip=192.0.2.1}:@shop.views.login() 5"]]


@pytest.mark.promise(1, 2)
def test_all_limits_of_an_endpoint_are_decided_in_one_store_call(store: RecordingStore) -> None:
    marks = (
        EndpointLimit("3/minute"),
        EndpointLimit("3/minute", key="all"),
        EndpointLimit("1/hour", name="login"),
        EndpointLimit("1/hour", name="login"),
    )
    one = gate(store)
    verdicts = [ask(one, marks) for _ in range(2)]
    assert [verdict is not None and verdict.allowed for verdict in verdicts] == [True, False]
    names = ["{ip=192.0.2.1}:@shop.views.login()", "{all=all}:@shop.views.login()+"]
    names += ["{ip=192.0.2.1}:@login"]  # equal limits with the same name are one limit
    assert [[text.partition(" ")[0] for text in call] for call in taken(store)] == [names] * 2
    assert verdicts[1] is not None
    assert [policy.name for policy in verdicts[1].policies] == ["shop.views.login", "shop.views.login-2", "login"]
    assert [decision.remaining for decision in verdicts[1].decisions] == [2, 2, 0]


@pytest.mark.parametrize(
    "option",
    [{"concurrent": 1}, {"on_store_error": "deny"}, {"concurrent": 5, "queue": 2}],
    ids=lambda one: next(iter(one)),
)
def test_equal_limits_of_one_name_with_different_options_both_apply(
    store: RecordingStore, option: dict[str, Any]
) -> None:
    marks = (EndpointLimit("3/minute", name="login", concurrent=5), EndpointLimit("3/minute", name="login", **option))
    ask(gate(store), marks)
    keys = {text.partition(" ")[0] for text in taken(store)[0]}
    assert keys == {"{ip=192.0.2.1}:@login", "{ip=192.0.2.1}:@login+"}


def test_a_limit_with_methods_applies_only_to_those_methods(store: RecordingStore) -> None:
    one, marks = gate(store), (EndpointLimit("5/minute", methods=["POST"]),)
    ask(one, marks, PlainRequest("/", "GET"))
    ask(one, marks, PlainRequest("/", "POST"))
    assert [call[0].rpartition(":")[2] for call in taken(store)] == ["default 9", "@shop.views.login() 5"]


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    ("when", "name"),
    [
        (lambda _: False, "default 9"),
        (lambda _: True, "@shop.views.login() 5"),
        (lambda _: 1 // 0 == 0, "@shop.views.login() 5"),
    ],
    ids=["no", "yes", "raises"],
)
def test_a_limit_applies_unless_its_when_callable_returns_false(store: RecordingStore, when: Any, name: str) -> None:
    ask(gate(store), (EndpointLimit("5/minute", when=when),))
    assert taken(store)[0][0].rpartition(":")[2] == name


NEAR, FAR = "@shop.views.login() 5", "@shop.views.login() 6"
NEAREST: list[tuple[Any, list[str]]] = [
    (EndpointLimit("5/minute"), [NEAR]),
    (EndpointLimit("5/minute", final=False), [NEAR, "@shop.views.login()+ 6"]),
    (EndpointLimit("5/minute", methods=["POST"]), ["@shop.views.login()+ 6"]),
    (EndpointLimit("5/minute", when=lambda _: False), ["@shop.views.login()+ 6"]),
    (EndpointLimit("5/minute", when=lambda _: 1 // 0 == 0), [NEAR, "@shop.views.login()+ 6"]),
    (EndpointLimit("5/minute", name="own"), ["@own 5"]),
    (EndpointLimit("5/minute", name="own", shadow=True), ["@own 5", FAR]),
    (EndpointLimit.exemption(), []),
]


@pytest.mark.promise(9)
@pytest.mark.parametrize(("near", "expected"), NEAREST)
def test_outer_limits_apply_unless_an_inner_limit_ends_the_search(
    store: RecordingStore, near: EndpointLimit, expected: list[str]
) -> None:
    one = gate(store)
    name = "shop.views.login"
    outer = ((EndpointLimit("6/minute"),), name, ""), ((EndpointLimit("7/minute"), EndpointLimit("8/minute")), name, "")
    marked = one.rule_set.compile_endpoint_limits((near,), name, "", *outer)
    one.admit(PlainRequest("/"), marked)
    assert [text.rpartition(":")[2] for call in taken(store) for text in call] == expected


def test_all_limits_at_the_same_level_apply(store: RecordingStore) -> None:
    one = gate(store)
    outer = (EndpointLimit("7/minute", final=False), EndpointLimit("8/minute", name="api")), "items", ""
    marked = one.rule_set.compile_endpoint_limits((), "items.GET", "", outer)
    one.admit(PlainRequest("/"), marked)
    assert [text.rpartition(":")[2] for text in taken(store)[0]] == ["@items() 7", "@api 8"]


def test_exempt_safelisted_and_disabled_requests_skip_endpoint_limits(store: RecordingStore) -> None:
    for settings in ({"exempt": ["/"]}, {"safelist": ["192.0.2.1"]}, {"enabled": False}):
        assert ask(gate(store, **settings), (EndpointLimit("5/minute"),)) is None
    assert store.calls == []


def test_a_sync_gate_enforces_a_limit_with_an_async_key(
    store: RecordingStore, caplog: pytest.LogCaptureFixture
) -> None:
    one, marks = gate(store), (EndpointLimit("1/minute", key=later),)
    with caplog.at_level(logging.WARNING):
        verdicts = [ask(one, marks) for _ in range(2)]
    assert [verdict is not None and verdict.allowed for verdict in verdicts] == [True, False]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("shop.views.login", "shop.views.login"),
        ("shop.views.make.<locals>.view", "shop.views.make._locals_.view"),
        ("/users/{id}", "users_id"),
        ("", "root"),
        ("default", "endpoint_default"),
        ("a" * 64, "a" * 64),
        ("a" * 65, "a" * 55 + "-a3889889"),
    ],
)
def test_name_for_turns_endpoint_names_into_limit_names(text: str, name: str) -> None:
    assert name_for(text) == name


@pytest.mark.promise(10)
def test_endpoints_with_colliding_names_have_separate_buckets() -> None:
    texts = ["GET /items/{item}", "GET /items/item", "GET /items_item", "GET/items/item", "GET_items_item", "a" * 65]
    assert len({bucket_for(text) for text in texts}) == len(texts)
    assert {name_for(text) for text in texts[:5]} == {"GET_items_item"}
    assert bucket_for("shop.views.login") == "shop.views.login"
    assert bucket_for("GET /items/{item}") == "GET_items_item-ff80fe5b"


@pytest.mark.parametrize("answer", [True, False, None])
def test_an_enabled_callable_is_called_for_each_request(answer: Any) -> None:
    asked: list[str] = []

    def enabled(request: Request) -> Any:
        asked.append(request.path)
        return answer

    one = Gate(Settings.of({"limits": "1/minute", "store": MemoryStore(clock=Clock()), "enabled": enabled}, {}))
    verdicts = [one.admit(PlainRequest("/")) for _ in range(2)]
    free = answer is False
    assert [None if verdict is None else verdict.allowed for verdict in verdicts] == (
        [None, None] if free else [True, False]
    )
    assert asked == ["/", "/"]


@pytest.mark.promise(10)
def test_a_named_limit_keeps_its_bucket_next_to_others_of_that_name(store: RecordingStore) -> None:
    one, shared = gate(store), EndpointLimit("2/minute", name="n")
    for marks in ((), (EndpointLimit("30/hour", name="n"),), (EndpointLimit("2/minute", name="n", shadow=True),)):
        ask(one, (*marks, shared))
    client = "{ip=192.0.2.1}:"
    assert taken(store) == [
        [f"{client}@n 2"],
        [f"{client}@n 30", f"{client}@n 2"],
        [f"{client}@n 2", f"{client}@n+ 2"],  # a shadow limit counts separately
    ]


@pytest.mark.promise(10)
def test_an_endpoint_shares_no_bucket_with_a_limit_of_the_same_name(store: RecordingStore) -> None:
    one = gate(store)
    for marks in ((EndpointLimit("5/minute"),), (EndpointLimit("5/minute", name="shop.views.login"),)):
        ask(one, marks)
    assert taken(store) == [["{ip=192.0.2.1}:@shop.views.login() 5"], ["{ip=192.0.2.1}:@shop.views.login 5"]]
