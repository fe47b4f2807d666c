"""Scenarios: clients that ask what is left of their own limits."""

from dataclasses import replace

from web.scenario import Left, Scenario, Step, blocked, no, usage

PATH = "/rate-limits"
MINUTE = "/minute using fixed_window"
OWN = [{"name": "login", "path": "/login", "limits": f"5{MINUTE}"}]
HIDDEN = [
    {"name": "shared", "path": "/shared", "limits": f"3{MINUTE}", "key": "all"},
    {"name": "routes", "path": "/by/{x}", "limits": f"3{MINUTE}", "key": "ip+route"},
    {"name": "seen", "path": "/seen", "limits": f"3{MINUTE}", "shadow": True},
    {"name": "api", "path": "/api", "limits": f"7{MINUTE}", "key": "header:x-api-key"},
    {"name": "vip", "path": "/vip", "limits": f"8{MINUTE}", "host": "vip.test"},
]


def left(name: str, quota: int, remaining: int, reset: float = 60.0) -> Left:
    """A limit per minute."""
    return (name, quota, 60, remaining, reset if remaining < quota else 0.0)


def app(remaining: int, path: str = "/", **more: str) -> Step:
    """A request that the app answers, under the default limit."""
    return Step(path=path, state=(("default", remaining, 60),), **more)  # type: ignore[arg-type]  # `method` or `root`


FULL = usage(left("login", 5, 5), left("default", 9, 9))
USAGE = (
    Scenario(
        name="usage: of each rule, at no cost, with the keys that are the client's own",
        settings={
            "limits": f"9{MINUTE}",
            "app_limits": f"20{MINUTE}",
            "rules": [*OWN, *HIDDEN],
            "penalty": "4 refusals per minute: 1 minute",
            "key": "ip",
            "usage_path": PATH,
        },
        steps=(
            usage(left("app", 20, 20), left("login", 5, 5), left("default", 9, 9)),
            Step(path="/login", state=(("login", 4, 60), ("app", 19, 60))),
            Step(path="/login", client="192.0.2.2", state=(("login", 4, 60), ("app", 19, 60))),
            usage(left("app", 20, 20), left("login", 5, 5), left("default", 9, 9), wait=0.75),  # kept for a second
            usage(left("app", 20, 19, 59.0), left("login", 5, 4, 59.0), left("default", 9, 9), wait=0.25),
            usage(
                left("app", 20, 19, 59.0),
                left("login", 5, 4, 59.0),
                left("api", 7, 7),
                left("vip", 8, 8),
                left("default", 9, 9),
                headers={"X-Api-Key": "7", "Host": "vip.test"},
            ),
        ),
    ),
    Scenario(
        name="usage: only GET and HEAD of exactly this path, which is free for every client",
        settings={"limits": f"9{MINUTE}", "rules": OWN, "usage_path": PATH},
        steps=(
            *(FULL for _ in range(12)),
            replace(FULL, method="HEAD"),
            replace(FULL, root="/app"),
            app(8, PATH, method="POST"),
            app(7, PATH, method="OPTIONS"),
            app(6, f"{PATH}/"),
            app(5, f"/{PATH}"),
            app(4, f"{PATH}/../rate-limits"),
            app(3, "/Rate-Limits"),
            app(2, "/"),
        ),
    ),
    Scenario(
        name="usage: without any rule by path, at the root of a mounted app, too",
        settings={"limits": f"2{MINUTE}", "usage_path": PATH},
        steps=(
            app(1, "/app"),
            replace(usage(left("default", 2, 1)), root="/app"),
            app(0, f"{PATH}/a", root="/app"),
            no(60, "default", state=(("default", 0, 60),)),
            usage(left("default", 2, 0, 59.0), wait=1.0),
        ),
    ),
    Scenario(
        name="usage: a blocked client stays blocked, a safe one has no limits, one without a key is refused",
        settings={
            "limits": f"2{MINUTE}",
            "blocklist": ["192.0.2.66"],
            "safelist": ["192.0.2.7"],
            "key": "header:x-api-key",
            "missing_key": "deny",
            "usage_path": PATH,
        },
        steps=(
            blocked(path=PATH, client="192.0.2.66"),
            usage(client="192.0.2.7"),
            Step(path=PATH, status=403, asked=0),
            usage(left("default", 2, 2), headers={"X-Api-Key": "1"}),
        ),
    ),
    Scenario(
        name="usage: 503 while the store is away, for as long as an answer is kept",
        settings={"limits": f"2{MINUTE}", "usage_path": PATH},
        steps=(
            replace(usage(), status=503, retry_after=1, broken=True),
            replace(usage(), status=503, retry_after=1),
            usage(left("default", 2, 2), wait=1.0),
        ),
    ),
)
