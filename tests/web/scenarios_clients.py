"""Scenarios: client lists, trusted proxies, rules by host, and tiers."""

from collections.abc import Awaitable
from typing import Any

from ratelimit_mw.http.request import Request
from web.scenario import Scenario, Step, blocked, free, no

NETWORKS = ["10.0.0.0/8", "2001:db8:5::/48", "203.0.113.7", "::ffff:172.16.0.0/108"]
TOKEN = {"header": "X-Internal-Token", "value": "s3cret"}
TIERS = {"free": "9/hour", "pro": "99/hour"}
BOTH = {"X-Plan": "small", "X-Tier": "pro"}
EVERYWHERE = "/{rest:path}"


def says_true(request: Request) -> bool:
    return True


def says_false(request: Request) -> bool:
    return False


def raises(request: Request) -> bool:
    raise LookupError(request.path)


def says_yes(request: Request) -> str:
    return "yes"


def says_one(request: Request) -> int:
    return 1


def says_nothing(request: Request) -> None:
    return None


def says_later(request: Request) -> Awaitable[bool]:
    async def later() -> bool:
        return True

    return later()


def is_vip(request: Request) -> bool:
    return request.header("x-vip") == "1"


def plan_of(request: Request) -> str | None:
    return request.header("x-plan")


def raising_plan(request: Request) -> str:
    raise LookupError(request.path)


ANY_CASE: dict[str, Any] = {
    "header": lambda request: request.header("X-Evil") == "1",
    "header_lines": lambda request: list(request.header_lines("X-EVIL")) == ["1"],
    "headers": lambda request: request.headers.get("X-Evil") == "1",
}
NOT_HEARD = {
    "says False": says_false,
    "raises": raises,
    "says a text": says_yes,
    "says 1": says_one,
    "says nothing": says_nothing,
    "says it later": says_later,
}


def left(remaining: int, of: str = "default") -> tuple[tuple[str, int, int], ...]:
    return ((of, remaining, 3600),)


def token(value: str, **more: Any) -> Step:
    return Step(headers={"X-Internal-Token": value}, **more)


def tier(name: str, remaining: int, *, header: str = "X-Tier", **more: Any) -> Step:
    return Step(headers={header: name}, state=left(remaining), **more)


LISTS = (
    Scenario(
        name="the safelist: networks to their last address, however it is written",
        settings={"limits": "9/hour", "safelist": NETWORKS},
        promises=(10,),
        steps=(
            free(client="10.0.0.0"),
            free(client="10.255.255.255"),
            Step(client="9.255.255.255", state=left(8)),
            Step(client="11.0.0.0", state=left(8)),
            free(client="::ffff:10.0.0.1"),
            free(client="::ffff:a00:1"),
            free(client="64:ff9b::a00:1"),
            free(client="10.0.0.1:4711"),
            free(client="2001:db8:5::"),
            free(client="2001:db8:5:ffff:ffff:ffff:ffff:ffff"),
            free(client="2001:db8:5::1%eth0"),
            Step(client="2001:db8:4:ffff:ffff:ffff:ffff:ffff", state=left(8)),
            Step(client="2001:db8:6::", state=left(8)),
            Step(client="2001:db8::10.0.0.1", state=left(8)),
            free(client="203.0.113.7"),
            free(client="::ffff:203.0.113.7"),
            Step(client="203.0.113.8", state=left(8)),
            free(client="172.31.255.255"),
            Step(client="172.32.0.0", state=left(8)),
            Step(client=None, state=left(8)),
            Step(client="junk", state=left(7)),
        ),
    ),
    Scenario(
        name="the blocklist: the same networks, and the store is not asked",
        settings={"limits": "9/hour", "app_limits": "99/hour", "blocklist": NETWORKS, "headers": "both"},
        promises=(10,),
        steps=(
            blocked(client="10.0.0.0"),
            blocked(client="10.255.255.255", method="HEAD"),
            blocked(client="::ffff:10.0.0.1", method="POST"),
            blocked(client="64:ff9b::a00:1"),
            blocked(client="2001:db8:5:ffff:ffff:ffff:ffff:ffff", broken=True),
            blocked(client="203.0.113.7", path="/nowhere", method="DELETE"),
            Step(client="9.255.255.255", state=(("default", 8, 3600), ("app", 98, 3600)), legacy=(9, 8, 3600)),
        ),
    ),
    Scenario(
        name="on a list is whom a trusted proxy names, and nobody whom a stranger does",
        settings={
            "limits": "9/hour",
            "trusted_proxies": ["192.0.2.0/24"],
            "safelist": ["10.0.0.0/8", "192.0.2.9"],
            "blocklist": ["203.0.113.0/24"],
        },
        promises=(10,),
        steps=(
            free(headers={"X-Forwarded-For": "10.1.1.1"}),
            Step(headers={"X-Forwarded-For": "10.1.1.1, 198.51.100.1"}, state=left(8)),
            blocked(headers={"X-Forwarded-For": "10.1.1.1, 203.0.113.1"}),
            Step(client="198.51.100.2", headers={"X-Forwarded-For": "10.1.1.1"}, state=left(8)),
            blocked(client="203.0.113.2", headers={"X-Forwarded-For": "10.1.1.1"}),
            Step(client="192.0.2.9", headers={"X-Forwarded-For": "198.51.100.3"}, state=left(8)),
            free(client="192.0.2.9"),
        ),
    ),
    Scenario(
        name="blocked goes before safe, and safe before what is exempt",
        settings={
            "limits": "9/hour",
            "blocklist": ["10.0.0.0/16"],
            "safelist": ["10.0.0.0/8"],
            "exempt": ["/health"],
            "app_limits": "99/hour",
            "rules": [{"path": "/login", "limits": "2/hour"}],
        },
        steps=(
            blocked(client="10.0.0.1"),
            blocked(client="10.0.0.1", path="/health"),
            free(client="10.1.0.1"),
            free(client="10.1.0.1", path="/health"),
            free(client="10.1.0.1", path="/login"),
            free(client="11.0.0.1", path="/health"),
            Step(client="11.0.0.1", path="/login", state=(("login", 1, 3600), ("app", 98, 3600))),
        ),
    ),
    Scenario(
        name="switched off, nobody is blocked",
        settings={"limits": "9/hour", "blocklist": ["10.0.0.0/8"], "enabled": False},
        steps=(free(client="10.0.0.1"),),
    ),
    Scenario(
        name="the safelist: a header's secret, exactly and once",
        settings={"limits": "99/hour", "safelist": [TOKEN]},
        promises=(10,),
        steps=(
            token("s3cret", asked=0, source=""),
            free(headers={"x-internal-token": "s3cret"}),
            token("S3cret", state=left(98)),
            token("s3cre", state=left(97)),
            token("s3crets", state=left(96)),
            token("s3cret,s3cret", state=left(95)),
            token("", state=left(94)),
            token("s3cret", lines=(("X-Internal-Token", "s3cret"),), state=left(93)),
            token("other", lines=(("x-internal-token", "s3cret"),), state=left(92)),
            token("s3cr\xe9t", state=left(91)),
            Step(headers={"X-Internal": "s3cret"}, state=left(90)),
            Step(state=left(89)),
        ),
    ),
    Scenario(
        name="a secret that is not ASCII",
        settings={"limits": "99/hour", "safelist": [{"header": "X-Token", "value": "s\xe9sam"}]},
        promises=(10,),
        steps=(free(headers={"X-Token": "s\xe9sam"}), Step(headers={"X-Token": "sesam"}, state=left(98))),
    ),
    Scenario(
        name="the blocklist: a header's value, in whichever of its lines",
        settings={"limits": "99/hour", "blocklist": [{"header": "X-Bot", "value": "yes"}]},
        promises=(10,),
        steps=(
            blocked(headers={"X-Bot": "yes"}),
            Step(headers={"X-Bot": "no"}, state=left(98)),
            Step(headers={"X-Bot": "yes!"}, state=left(97)),
            blocked(headers={"X-Bot": "yes"}, lines=(("X-Bot", "yes"),)),
        ),
    ),
    Scenario(
        name="the blocklist: a client's own line in front of its proxy's frees nobody",
        settings={"limits": "99/hour", "blocklist": [{"header": "X-Bot", "value": "yes"}]},
        promises=(10,),
        steps=(
            blocked(headers={"X-Bot": "no"}, lines=(("X-Bot", "yes"),)),
            blocked(headers={"X-Bot": "yes"}, lines=(("X-Bot", "no"),)),
        ),
    ),
    Scenario(
        name="callables of the lists, by name and as they are",
        settings={
            "limits": "9/hour",
            "safelist": ["call:web.scenarios_clients:is_vip"],
            "blocklist": [lambda request: request.header("x-evil") == "1"],
        },
        steps=(
            free(headers={"X-Vip": "1"}),
            Step(headers={"X-Vip": "0"}, state=left(8)),
            blocked(headers={"X-Evil": "1"}),
            blocked(headers={"X-Evil": "1", "X-Vip": "1"}),
        ),
    ),
    *(
        Scenario(
            name=f"a callable of the blocklist that reads {name} finds it in any case of its name",
            settings={"limits": "9/hour", "blocklist": [call]},
            steps=(blocked(headers={"X-evil": "1"}), Step(headers={"X-Evil": "0"}, state=left(8))),
        )
        for name, call in ANY_CASE.items()
    ),
    *(
        Scenario(
            name=f"a callable of the safelist that {name} is not heard, and the next is asked",
            settings={"limits": "9/hour", "safelist": [call, is_vip]},
            promises=(9,),
            steps=(Step(state=left(8)), free(headers={"X-Vip": "1"})),
        )
        for name, call in NOT_HEARD.items()
    ),
    *(
        Scenario(
            name=f"a callable of the blocklist that {name} is not heard, and the next is asked",
            settings={"limits": "9/hour", "blocklist": [call, is_vip]},
            promises=(9,),
            steps=(Step(state=left(8)), blocked(headers={"X-Vip": "1"})),
        )
        for name, call in NOT_HEARD.items()
    ),
)


def behind(client: str, **more: Any) -> Step:
    """A step through a proxy on a unix socket."""
    return Step(client=None, headers={"X-Forwarded-For": client}, **more)


PROXIES = (
    Scenario(
        name="clients behind a unix socket are told apart",
        settings={"limits": "2/hour", "trusted_proxies": ["unix:"]},
        promises=(10,),
        steps=(
            behind("203.0.113.1", state=left(1)),
            behind("203.0.113.1", state=left(0)),
            no(3600, "default", client=None, headers={"X-Forwarded-For": "203.0.113.1"}, state=left(0)),
            behind("203.0.113.2", state=left(1)),
        ),
    ),
)
HOSTS = (
    Scenario(
        name="a rule for hosts, without case, port and a dot at the end",
        settings={
            "limits": "99/hour",
            "rules": [
                {"path": EVERYWHERE, "host": "API.example.com", "limits": "9/hour", "name": "api"},
                {"path": EVERYWHERE, "host": ["*.example.com", "[2001:db8::1]"], "limits": "8/hour", "name": "below"},
            ],
        },
        promises=(9,),
        steps=(
            Step(headers={"Host": "api.example.com"}, state=left(8, "api")),
            Step(headers={"Host": "api.EXAMPLE.com:8080"}, state=left(7, "api")),
            Step(headers={"Host": "api.example.com."}, state=left(6, "api")),
            Step(headers={"Host": "a.b.example.com"}, state=left(7, "below")),
            Step(headers={"Host": "[2001:DB8::1]:443"}, state=left(6, "below")),
            Step(headers={"Host": "example.com"}, state=left(98)),
            Step(headers={"Host": "badexample.com"}, state=left(97)),
            Step(headers={"Host": "api.example.com.evil.test"}, state=left(96)),
            Step(headers={"Host": "evil@api.example.com"}, state=(*left(5, "api"), *left(5, "below"), *left(95))),
            Step(
                headers={"Host": "api.example.com"},
                lines=(("Host", "other.test"),),
                state=(*left(4, "api"), *left(4, "below"), *left(94)),
            ),
        ),
    ),
)
TIERED = (
    Scenario(
        name="tiers by header: the first is for whoever has none or an unknown one",
        settings={"limits": TIERS, "tier": "header:x-tier"},
        promises=(9, 10),
        steps=(
            Step(state=left(8), policy=(("default", 9, 3600),)),
            tier("pro", 98, policy=(("default", 99, 3600),)),
            tier("free", 7),
            tier("gold", 6),
            tier("PRO", 5),
            tier("", 4),
            tier("p%72o", 3),
            tier("pro+", 2),
            tier("x=pro", 1),
            tier("pro", 0, lines=(("X-Tier", "pro"),)),
            no(3600, "default", headers={"X-Tier": "default"}, state=left(0)),
            tier("pro", 97),
        ),
    ),
    Scenario(
        name="the tier called default is for whoever has none",
        settings={"limits": {"pro": "99/hour", "default": "9/hour"}, "tier": "header:x-tier"},
        steps=(Step(state=left(8)), tier("gold", 7), tier("pro", 98), tier("default", 6)),
    ),
    Scenario(
        name="default_tier goes before the tier called default",
        settings={"limits": {**TIERS, "default": "1/hour"}, "tier": "header:x-tier", "default_tier": "pro"},
        steps=(Step(state=left(98)), tier("gold", 97), tier("free", 8), tier("default", 0)),
    ),
    Scenario(
        name="tiers by user, each in a bucket of their own",
        settings={"limits": {"anonymous": "9/hour", "root": "99/hour"}, "tier": "user", "key": "ip"},
        steps=(
            Step(state=left(8)),
            Step(user="root", state=left(98)),
            Step(user="bob", state=left(7)),
            Step(user="root", client="192.0.2.2", state=left(98)),
        ),
    ),
    Scenario(
        name="tiers by a callable, by name",
        settings={"limits": TIERS, "tier": "call:web.scenarios_clients:plan_of"},
        steps=(Step(state=left(8)), tier("pro", 98, header="X-Plan"), tier("gold", 7, header="X-Plan")),
    ),
    *(
        Scenario(
            name=f"a tier's callable that {name} names none",
            settings={"limits": TIERS, "tier": call},
            promises=(9,),
            steps=(Step(state=left(8)), tier("pro", 7)),
        )
        for name, call in {"raises": raising_plan, "says nothing": says_nothing, "says True": says_true}.items()
    ),
    Scenario(
        name="a rule has tiers of its own, by a key of its own",
        settings={
            "limits": TIERS,
            "tier": "header:x-tier",
            "app_limits": {"free": "50/hour", "pro": []},
            "rules": [
                {
                    "path": "/api",
                    "limits": {"small": "3/hour; 20/day", "big": "33/hour"},
                    "tier": "header:x-plan",
                    "default_tier": "big",
                },
                {"path": "/sub", "limits": {"pro": "5/hour", "free": []}, "default_tier": "free", "name": "sub"},
            ],
        },
        steps=(
            Step(path="/api", state=(("api", 32, 3600), ("app", 49, 3600))),
            Step(path="/api", headers=BOTH, state=(("api", 2, 3600), ("api-2", 19, 86400))),
            Step(path="/sub", headers={"X-Tier": "pro"}, state=left(4, "sub")),
            Step(path="/sub", state=left(48, "app")),
            tier("pro", 98),
        ),
    ),
    Scenario(
        name="a tier without limits, in words",
        settings={"limits": {"free": "9/hour", "staff": []}, "tier": "header:x-tier"},
        steps=(Step(state=left(8)), free(headers={"X-Tier": "staff"}), Step(state=left(7))),
    ),
)
WHO = (*LISTS, *PROXIES, *HOSTS, *TIERED)
