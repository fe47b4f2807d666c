"""Attacks on the choice of the limit: paths and methods that the limiter reads differently than the app."""

from attacks.attack import Attack, Play, Seen, Target, statuses
from attacks.on_identity import LOGIN, THREE

DEEP = "/1/2/3/4/5/6/7/8/9/10/page"
FIVE = (200,) * 5 + (429,) * 3  # of the default limit
OVERRIDES = ("X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override")
REWRITES = ("X-Original-URL", "X-Rewrite-URL", "X-Forwarded-Prefix", "X-Forwarded-Path", "X-Script-Name")
HOSTS = ("x/health?", "x/health", "a.example", "127.0.0.1", "shop.example@google.com", "")
SPELLED = ("/login", "/%6cogin", "/login?1", "/login?2", "/%6C%6F%67%69%6E", "/login?/health")
FRAGMENTS = ("/login#x", "/health#/../login", "/login?#")
OTHERWISE = (
    *("//login", "/login/", "/./login", "/health/../login", "/health/%2e%2e/login", "/login/.", "/login%0a"),
    *("//x/..//login/", "/x//../login%0a"),
)


def hosts(target: Target) -> Seen:
    me = target.address()
    return Seen(statuses([target.ask(me, *LOGIN, ("Host", host)) for host in HOSTS]))


def absolute(target: Target) -> Seen:
    me = target.address()
    first = statuses([target.ask(me, *LOGIN) for _ in range(3)])
    urls = [f"http://{host}/login" for host in ("shop.example", "x/health", "a@google.com")]
    return Seen(first + statuses([target.ask(me, "POST", url) for url in urls]))


def fragments(target: Target) -> Seen:
    me = target.address()
    first = statuses([target.ask(me, *LOGIN) for _ in range(3)])
    return Seen(first + statuses([target.ask(me, "POST", path) for path in FRAGMENTS]))


def spelled(target: Target) -> Seen:
    me = target.address()
    return Seen(statuses([target.ask(me, "POST", path) for path in SPELLED]))


def otherwise(target: Target) -> Seen:
    me = target.address()
    first = statuses([target.ask(me, *LOGIN) for _ in range(3)])
    return Seen(first + statuses([target.ask(me, "POST", path) for path in OTHERWISE]))


def rewrites(target: Target) -> Seen:
    me = target.address()
    lines = [(name, "/health") for name in REWRITES]
    return Seen(statuses([target.ask(me, *LOGIN, *lines) for _ in range(6)]))


def overrides(target: Target) -> Seen:
    me = target.address()
    lines = [(name, "GET") for name in OVERRIDES]
    return Seen(statuses([target.ask(me, "POST", f"/login?_method={each}", *lines) for each in range(6)]))


def fresh_paths(target: Target) -> Seen:
    me = target.address()
    return Seen(statuses([target.ask(me, "GET", f"/items/{each}") for each in range(8)]))


def nested(target: Target) -> Seen:
    me = target.address()
    return Seen(statuses([target.ask(me, "GET", DEEP) for _ in range(8)]))


def unmatched(target: Target) -> Seen:
    me = target.address()
    return Seen(statuses([target.ask(me, "GET", f"/no/such/{each}") for each in range(8)]))


def redirected(target: Target) -> Seen:
    me = target.address()
    return Seen(statuses([target.ask(me, "GET", "/page") for _ in range(8)]))


def wrong_methods(target: Target) -> Seen:
    me = target.address()
    methods = ("PUT", "DELETE", "PATCH", "PUT", "DELETE", "PATCH", "PUT", "DELETE")
    return Seen(statuses([target.ask(me, method, "/items/1") for method in methods]))


def preflights(target: Target) -> Seen:
    me = target.address()
    lines = [("Origin", "https://evil.example"), ("Access-Control-Request-Method", "POST")]
    return Seen(statuses([target.ask(me, "OPTIONS", f"/login?{each}", *lines) for each in range(8)]))


def preflights_to(path: str) -> Play:
    """Send preflights to an endpoint that handles OPTIONS itself, announcing various methods, then real requests."""
    announced = ("POST", "XYZ", "", "get, post", "OPTIONS", "\xff")

    def play(target: Target) -> Seen:
        me = target.address()
        origin = ("Origin", "https://evil.example")
        asked = [
            target.ask(me, "OPTIONS", path, origin, ("Access-Control-Request-Method", method)) for method in announced
        ]
        return Seen(statuses([*asked, *(target.ask(me, "POST", path) for _ in range(6))]))

    return play


def refused_inside(target: Target) -> Seen:
    me = target.address()
    return Seen(statuses([target.ask(me, "GET", "/guarded") for _ in range(12)]))


TWICE = ((200,) * 3 + (429,) * 3) * 2  # preflights and requests have separate quotas
BEFORE = "our own first release candidate"

ON_ROUTES = [
    Attack(
        "a path in the Host header",
        "CVE-2026-48710 Starlette, PYSEC-2026-248",
        "6 logins with Host: x/health?, a@google.com, empty and the like",
        "3 logins per address",
        hosts,
        THREE,
        most=3,
    ),
    Attack(
        "a whole URL as the path",
        "PYSEC-2026-248 Starlette",
        "3 logins, then POST http://shop.example/login and the like",
        "3 logins per address",
        absolute,
        (200, 200, 200, 429, 404, 429),  # the path of the second request is /health/login
        most=3,
    ),
    Attack(
        "a fragment in the path",
        BEFORE,
        "3 logins, then POST /login#x, /health#/../login and the like",
        "3 logins per address, whether the server keeps # in the path or not",
        fragments,
        (200, 200, 200, 404, 429, 429),
        most=3,
    ),
    Attack(
        "the path in escapes, and with queries",
        "CVE-2026-27587 Caddy",
        "6 logins to /login, /%6cogin, /login?1, ...",
        "3 logins per address",
        spelled,
        THREE,
        most=3,
    ),
    Attack(
        "the path spelled otherwise",
        "GHSA-x732-6j76-qmhm Better Auth, GHSA-24q2-59hm-rh9r Strapi, CVE-2025-29914 Coraza",
        "3 logins, then //login, /login/, /health/../login, /login%0a and the like",
        "3 logins per address, whatever the app makes of these paths",
        otherwise,
        (200, 200, 200) + (429,) * len(OTHERWISE),
        most=3,
    ),
    Attack(
        "headers that name another path",
        "X-Original-URL and X-Rewrite-URL",
        f"6 logins with {len(REWRITES)} headers that say /health, which is exempt",
        "3 logins per address",
        rewrites,
        THREE,
        most=3,
    ),
    Attack(
        "headers that name another method",
        "GHSA-vpvj-hfh8-388m parse-server",
        "6 logins with X-HTTP-Method-Override: GET and the like",
        "3 logins per address",
        overrides,
        THREE,
        most=3,
    ),
    Attack(
        "a new path each time",
        "steemit/wallet #319, slowapi #217",
        "8 requests to /items/0 to /items/7, one route under 3 an hour",
        "3 requests per route",
        fresh_paths,
        (200,) * 3 + (429,) * 5,
        most=3,
    ),
    Attack(
        "a route of nested routers",
        "GHSA-f2vm-w8gq-h378 fastapi-guard, slowapi #281",
        "8 requests to a route ten routers deep, under the default of 5 an hour",
        "5 requests per address",
        nested,
        FIVE,
        most=5,
    ),
    Attack(
        "paths that no route has",
        "scans of all paths: flask-limiter, slowapi",
        "8 requests to /no/such/0 to 7, under the default of 5 an hour",
        "the app answers 5 of them",
        unmatched,
        (404,) * 5 + (429,) * 3,
        most=5,
        passes=frozenset({404}),
    ),
    Attack(
        "redirects to the other slash",
        "Starlette redirects /page to /page/",
        "8 requests to /page, under the default of 5 an hour",
        "the app answers 5 of them",
        redirected,
        (307,) * 5 + (429,) * 3,
        most=5,
        passes=frozenset({307, 308}),
    ),
    Attack(
        "methods that the route does not have",
        "limits that look at the route's methods only",
        "8 requests PUT, DELETE and PATCH /items/1, a route of GET under 3 an hour, or else the default of 5",
        "the app answers 5 of them at most",
        wrong_methods,
        (405,) * 3 + (429,) * 5,
        most=5,
        passes=frozenset({405}),
    ),
    Attack(
        "a flood of preflights",
        "exemptions of OPTIONS",
        "8 CORS preflights that announce POST /login, under 3 an hour, or else the default of 5",
        "the app answers 5 of them at most",
        preflights,
        (405,) * 3 + (429,) * 5,
        most=5,
        passes=frozenset({200, 204, 405}),
    ),
    Attack(
        "preflights to an endpoint that answers OPTIONS",
        BEFORE,
        "6 preflights that announce POST, XYZ, nothing and the like, then 6 POSTs, under 3 an hour for all methods",
        "the app answers 3 preflights and 3 POSTs",
        preflights_to("/any"),
        TWICE,
        most=6,
        route="/any",
    ),
    Attack(
        "preflights to a limit that stands on the endpoint",
        BEFORE,
        "the same to an endpoint with Depends(RateLimit), 3 an hour",
        "the app answers 3 preflights and 3 POSTs",
        preflights_to("/door"),
        (200, 200, 200, 403, 403, 403) * 2,
        most=6,
        route="/door",
    ),
    Attack(
        "refusals by an inner limit",
        BEFORE,
        "12 requests: 5 an hour outside, then a password check, then 2 an hour inside",
        "the password is checked 5 times",
        refused_inside,
        (200, 200, 403, 403, 403) + (429,) * 7,
        most=5,
        passes=frozenset({200, 403}),
        route="/guarded",
    ),
]
