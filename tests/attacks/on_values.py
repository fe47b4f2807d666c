"""Attacks with hostile values: keys, numbers, text for logs and responses, huge values, and floods of new keys."""

from attacks.attack import Attack, Seen, Target, statuses
from attacks.on_identity import LOGIN
from attacks.wire import Reply

KEY = "X-Api-Key"
ALIKE = ("k-1", "K%2D1", "K-1+ip=1", "K-1/", "K--1", "\xcb-1", "K-1:3", "k_1", "header:x-api-key=K-1", "{K-1}")
NO_NUMBERS = ("nan", "inf", "1e9", "0x10", "", "5.5", "1_", "\xb2", "--1", "9" * 5000)
GIANT = 40_000  # characters: servers accept somewhat more
FLOOD = 1_100  # addresses: the memory store of the attacked app keeps 1,000
FORGED = "forged: a line of log"


def spends(target: Target, *costs: str) -> list[Reply]:
    me = target.address()
    return [target.ask(me, "POST", "/spend", ("X-Cost", cost)) for cost in costs]


def negative(target: Target) -> Seen:
    return Seen(statuses(spends(target, "-1000000", *["1"] * 12)))


def no_numbers(target: Target) -> Seen:
    return Seen(statuses(spends(target, *NO_NUMBERS, "1", "1", "1")))


def giant_number(target: Target) -> Seen:
    return Seen(statuses(spends(target, "9" * 400, *["1"] * 12)))


def alike(target: Target) -> Seen:
    for key in ALIKE:
        for _ in range(4):
            target.ask(target.address(), "GET", "/keyed", (KEY, key))
    return Seen(statuses([target.ask(target.address(), "GET", "/keyed", (KEY, "K-1")) for _ in range(4)]))


def giants(target: Target) -> Seen:
    found: list[Reply] = []
    for last in "ab":
        found += [target.ask(target.address(), "GET", "/keyed", (KEY, "x" * GIANT + last)) for _ in range(4)]
    return Seen(statuses(found))


def giant_path(target: Target) -> Seen:
    me = target.address()
    return Seen(statuses([target.ask(me, "GET", f"/items/{'x' * GIANT}{each}") for each in range(6)]))


def many_segments(target: Target) -> Seen:
    me = target.address()
    paths = ["/a" * 20_000, "/.." * 13_000, "/" * GIANT, "/%2e%2e" * 5_000, "/a/.." * 8_000, "/%0a" * 10_000]
    return Seen(statuses([target.ask(me, "GET", path) for path in [*paths, "/no/such"]]))


def forges_the_log(target: Target) -> Seen:
    me = target.address()
    targets = [f"/items/%0a{FORGED.replace(' ', '%20')}%0a"] * 6
    replies = [target.ask(me, "GET", path) for path in targets]
    costs = [target.ask(me, "POST", "/spend", ("X-Cost", f"\x85{FORGED}")) for _ in range(20)]
    lines = target.direct.output().splitlines()
    forged = sum(line.strip().startswith(FORGED) for line in lines)
    return Seen(statuses([*replies, *costs]), forged)


def forges_a_header(target: Target) -> Seen:
    me = target.address()
    lines = [("Origin", "x\tSet-Cookie: forged=1"), ("User-Agent", '"}\\u000aSet-Cookie: forged=1'), (KEY, "\xff\xfe")]
    replies = [target.ask(me, "POST", "/login?%0d%0aSet-Cookie:%20forged=1", *lines) for _ in range(6)]
    return Seen(statuses(replies), sum(b"forged" in reply.head + reply.body for reply in replies))


def flood(target: Target) -> Seen:
    me = target.address()
    before = [target.ask(me, *LOGIN) for _ in range(5)]
    for _ in range(FLOOD):
        target.ask(target.address(), *LOGIN)
    return Seen(statuses([*before, *[target.ask(me, *LOGIN) for _ in range(3)]]))


TEN = (200,) * 10 + (429,) * 3  # of /spend
FOUR = (200, 200, 200, 429)  # of /keyed


def floods_out_a_high_cost(target: Target) -> Seen:
    me = target.address()
    before = [target.ask(me, "POST", "/spend", ("X-Cost", cost)) for cost in ("1", "10")]
    for _ in range(FLOOD):
        target.ask(target.address(), "POST", "/spend", ("X-Cost", "1"))
    return Seen(statuses([*before, *[target.ask(me, "POST", "/spend", ("X-Cost", cost)) for cost in ("10", "9", "1")]]))


ON_VALUES = [
    Attack(
        "a negative cost",
        "Helicone #4100, rustgate #292",
        "a cost of -1000000 where the client names the cost, then 12 of 1; 10 units an hour",
        "10 requests at most",
        negative,
        TEN,
        most=10,
        route="/spend",
    ),
    Attack(
        "costs that are no numbers",
        "NaN compares false both ways",
        "nan, inf, 1e9, 0x10, nothing, 5,000 digits and the like, then 3 of 1",
        "10 requests at most, and each has a unit at least",
        no_numbers,
        TEN,
        most=10,
        route="/spend",
    ),
    Attack(
        "a cost of 400 digits",
        "rustgate #292 overflow",
        "it, then 12 of 1",
        "10 requests at most",
        giant_number,
        (429, *TEN[:-1]),
        most=10,
        route="/spend",
    ),
    Attack(
        "keys that look like another one",
        "CVE-2026-25480 Litestar, ACCESS-NYC #517",
        f"{len(ALIKE)} API keys such as k-1, K%2D1, {{K-1}} until they are refused; then K-1 asks",
        "K-1 has its 3 requests, and no more",
        alike,
        FOUR,
        most=3,
        least=3,
        route="/keyed",
    ),
    Attack(
        "keys of 40,000 letters",
        "IronTraffic #215, n8n #24636",
        "two API keys of 40,000 letters that differ in the last, 4 requests each, 3 an hour",
        "3 requests per key",
        giants,
        FOUR * 2,
        most=6,
        route="/keyed",
    ),
    Attack(
        "paths of 40,000 letters",
        "keys made of raw paths",
        "6 requests to /items/xxx..., each another one, one route under 3 an hour",
        "3 requests per route",
        giant_path,
        (200, 200, 200, 429, 429, 429),
        most=3,
    ),
    Attack(
        "paths of 20,000 segments",
        "walks over nested routers that take minutes",
        "/a/a/..., /../../..., ////..., 6 of them, then one more, under the default of 5 an hour",
        "the app answers 5 of them",
        many_segments,
        (404,) * 5 + (429,) * 2,
        most=5,
        passes=frozenset({200, 307, 308, 404}),
    ),
    Attack(
        "a line for the log",
        "CWE-117, CVE-2026-108162 Pingvin",
        "refused requests whose path, and cost, hold a newline and a line of log",
        "no line of the server's log is the attacker's, nor does anything else pass",
        forges_the_log,
        (*(200,) * 3, *(429,) * 3, *(200,) * 10, *(429,) * 10),
        most=13,
    ),
    Attack(
        "a header for the answer",
        "CWE-113",
        "6 logins whose query and headers hold a newline and Set-Cookie",
        "3 logins, and nothing of it in any answer",
        forges_a_header,
        (200, 200, 200, 429, 429, 429),
        most=3,
    ),
    Attack(
        "a flood of new addresses",
        "actor-ts #607, throttled-py",
        f"5 logins, then one from each of {FLOOD:,} other addresses, then 3 more",
        "3 logins per address",
        flood,
        (200, 200, 200, 429, 429, 429, 429, 429),
        most=3,
    ),
    Attack(
        "a flood after a refusal at a high cost",
        "our own first release candidate",
        f"a request of 1 unit, one of 10, then 1 from each of {FLOOD:,} other addresses; then 10, 9 and 1",
        "10 units per address",
        floods_out_a_high_cost,
        (200, 429, 429, 200, 429),
        most=2,
        route="/spend",
    ),
]
