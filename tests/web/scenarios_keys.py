"""Scenarios: which bucket a request is charged to."""

from typing import Any

from ratelimit_mw.http.request import Request
from web.scenario import Scenario, Step, no

KEYED = {"limits": "9/hour", "missing_key": "shared"}


def raises(request: Request) -> str:
    raise RuntimeError(request.path)


def nothing(request: Request) -> None:
    return None


def number(request: Request) -> int:
    return int(request.headers["x-tenant"])


def thing(request: Request) -> object:
    return object()


def tenant(request: Request) -> str:
    return request.headers.get("x-tenant", "")


def as_(name: str, **more: Any) -> Step:
    return Step(headers={"X-Tenant": name}, **more)


def session(request: Request) -> str | None:
    return request.cookies.get("sid")


def left(remaining: int) -> tuple[tuple[str, int, int], ...]:
    return (("default", remaining, 3600),)


LONG_COOKIES = (f"sid=a; b={'x' * 8184}", f"b={'x' * 8184}; sid=c", f"b={'x' * 8191}")  # each of one character too many


def beyond_the_bound(name: str, key: Any) -> Scenario:
    """Return a scenario in which clients send too many cookies, so that their key cannot be read."""
    steps = (
        Step(asked=0, source=""),
        Step(headers={"Cookie": "sid=a"}, state=left(1)),
        Step(headers={"Cookie": LONG_COOKIES[0]}, state=left(1)),
        Step(headers={"Cookie": LONG_COOKIES[1]}, state=left(0)),
        no(3600, "default", headers={"Cookie": LONG_COOKIES[2]}, state=left(0)),
        Step(headers={"Cookie": f"sid=a; b={'x' * 8183}"}, state=left(0)),
    )
    settings = {"limits": "2/hour", "key": key, "missing_key": "exempt"}
    return Scenario(name=name, settings=settings, steps=steps, promises=(9, 10))


def shared_by_all(name: str, key: Any, missing_key: str = "shared") -> Scenario:
    """Return a scenario in which clients without a key share one bucket."""
    settings = {"limits": "2/hour", "key": key, "missing_key": missing_key}
    steps = (
        Step(client="192.0.2.1", state=left(1)),
        Step(client="192.0.2.2", state=left(0)),
        no(3600, "default", client="192.0.2.3", state=left(0)),
    )
    return Scenario(name=name, settings=settings, steps=steps, promises=(9,))


KEYS = (
    Scenario(
        name="a key may be a network of IPv4 and of IPv6",
        settings={"limits": "2/hour", "key": "ip/24/56"},
        steps=(
            Step(client="192.0.2.1", state=left(1)),
            Step(client="192.0.2.200", state=left(0)),
            no(3600, "default", client="192.0.2.3", state=left(0)),
            Step(client="192.0.3.1", state=left(1)),
            Step(client="2001:db8:0:1::1", state=left(1)),
            Step(client="2001:db8:0:ff::1", state=left(0)),
            Step(client="2001:db8:0:100::1", state=left(1)),
        ),
        promises=(10,),
    ),
    Scenario(
        name="clients do not share a bucket",
        settings=KEYED,
        steps=(
            Step(client="192.0.2.1", state=left(8)),
            Step(client="192.0.2.2", state=left(8)),
            Step(client="192.0.2.1", state=left(7)),
        ),
    ),
    Scenario(
        name="an IPv6 client is its network, and an IPv4 client one address however it is written",
        settings=KEYED,
        promises=(10,),
        steps=(
            Step(client="2001:db8::1", state=left(8)),
            Step(client="2001:db8::ffff:2%eth0", state=left(7)),
            Step(client="2001:db8:0:1::1", state=left(8)),
            Step(client="::ffff:192.0.2.1", state=left(8)),
            Step(client="192.0.2.1", state=left(7)),
            Step(client="::ffff:192.0.2.2", state=left(8)),
        ),
    ),
    Scenario(
        name="no header that a client can write names its address",
        settings=KEYED,
        promises=(10,),
        steps=(
            Step(headers={"X-Forwarded-For": "203.0.113.1"}, state=left(8)),
            Step(headers={"Forwarded": "for=203.0.113.2", "X-Real-IP": "203.0.113.2"}, state=left(7)),
            Step(headers={"CF-Connecting-IP": "203.0.113.3", "True-Client-IP": "203.0.113.3"}, state=left(6)),
        ),
    ),
    Scenario(
        name="a user is counted wherever he comes from, and is nobody's address",
        settings=KEYED,
        promises=(10,),
        steps=(
            Step(user="bob", client="192.0.2.1", state=left(8)),
            Step(user="bob", client="192.0.2.2", state=left(7)),
            Step(client="192.0.2.2", state=left(8)),
            Step(user="192.0.2.2", client="192.0.2.3", state=left(8)),
        ),
    ),
    Scenario(
        name="parts of a key do not run into each other",
        settings={"limits": "9/hour", "key": "user+header:x-tenant", "missing_key": "shared"},
        promises=(10,),
        steps=(
            as_("b+c", user="a", state=left(8)),
            as_("c", user="a+b", state=left(8)),
            as_("c", user="a+header:x-tenant=b", state=left(8)),
            as_("b%2Bc", user="a", state=left(8)),
            as_("b+c", user="a", state=left(7)),
        ),
    ),
    Scenario(
        name="an item may have a key of its own",
        settings={
            "limits": "99/hour",
            "rules": [{"path": "/", "key": "ip", "limits": ["2/minute", {"limit": "9/hour", "key": "user"}]}],
        },
        steps=(
            Step(user="bob", client="192.0.2.1", state=(("root", 1, 60), ("root-2", 8, 3600))),
            Step(user="bob", client="192.0.2.2", state=(("root", 1, 60), ("root-2", 7, 3600))),
            Step(user="eve", client="192.0.2.1", state=(("root", 0, 60), ("root-2", 8, 3600))),
            no(60, "root", user="eve", client="192.0.2.1", state=(("root", 0, 60), ("root-2", 8, 3600))),
        ),
    ),
    Scenario(
        name="a key's name is not case sensitive, and one cookie is one key",
        settings={"limits": "9/hour", "key": "header:X-TENANT | cookie:sid", "missing_key": "shared"},
        steps=(
            Step(headers={"x-tenant": "a"}, state=left(8)),
            Step(headers={"X-Tenant": "a"}, state=left(7)),
            Step(headers={"Cookie": "x=1; sid=a"}, state=left(8)),
            Step(headers={"Cookie": "sid=a; x=2"}, state=left(7)),
        ),
    ),
    Scenario(
        name="a callable's text or whole number is a key",
        settings={"limits": "9/hour", "key": number},
        steps=(as_("7", state=left(8)), as_("07", state=left(7)), as_("8", state=left(8))),
    ),
    Scenario(
        name="a callable's empty text is not there",
        settings={"limits": "9/hour", "key": tenant, "missing_key": "exempt"},
        steps=(as_("7", state=left(8)), as_("", asked=0, source="")),
    ),
    Scenario(
        name="missing_key deny",
        settings={"limits": "2/hour", "key": "ip", "missing_key": "deny", "app_limits": "9/minute"},
        promises=(9,),
        steps=(
            Step(client=None, status=403, asked=0),
            Step(client="not an address", status=403, asked=0),
            Step(client=None, method="HEAD", status=403, asked=0),
            Step(client="192.0.2.1", state=(("default", 1, 3600), ("app", 8, 60))),
        ),
    ),
    Scenario(
        name="missing_key exempt",
        settings={"limits": "2/hour", "key": "ip", "missing_key": "exempt"},
        steps=(Step(client=None, asked=0, source=""), Step(client="192.0.2.1", state=left(1))),
    ),
    Scenario(
        name="missing_key exempt frees a request of that limit only",
        settings={"limits": [{"limit": "2/minute", "key": "user"}, "9/hour"], "missing_key": "exempt", "key": "ip"},
        steps=(
            Step(state=(("default-2", 8, 3600),)),
            Step(user="bob", state=(("default", 1, 60), ("default-2", 7, 3600))),
        ),
    ),
    Scenario(
        name="missing_key deny refuses nobody in shadow",
        settings={"limits": "2/hour", "key": "ip", "missing_key": "deny", "shadow": True},
        steps=(Step(client=None, asked=0, source=""), Step(client="192.0.2.1")),
    ),
    Scenario(
        name="missing_key shared",
        settings={"limits": "2/hour", "key": "ip"},
        promises=(9,),
        steps=(
            Step(client=None, state=left(1)),
            Step(client="junk", state=left(0)),
            no(3600, "default", client="192.0.2.1:junk", state=left(0)),
            Step(client="192.0.2.1", state=left(1)),
        ),
    ),
    beyond_the_bound("a client with cookies beyond the bound is not exempt", "cookie:sid"),
    beyond_the_bound("a client with cookies beyond the bound is not exempt, if a callable reads them", session),
    shared_by_all("a callable that raises frees nobody", raises),
    shared_by_all("a callable that raises frees nobody, though missing_key is exempt", raises, "exempt"),
    shared_by_all("a callable that returns None is not there", nothing),
    shared_by_all("a callable that returns an object is not there", thing),
    shared_by_all("a callable that returns an object frees nobody, though missing_key is exempt", thing, "exempt"),
)
