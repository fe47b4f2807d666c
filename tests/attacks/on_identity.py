"""Attacks on the client's identity: forged addresses, and one address in many forms."""

from attacks.attack import BESIDE, Attack, Seen, Target, statuses
from attacks.wire import Line, Request

LOGIN = ("POST", "/login")
THREE = (200, 200, 200, 429, 429, 429)  # statuses under a limit of three
NAMES = (  # headers that some proxy, CDN or library writes or reads
    *("X-Forwarded-For", "X_Forwarded_For", "Forwarded", "X-Real-IP", "True-Client-IP", "CF-Connecting-IP"),
    *("X-Client-IP", "Fly-Client-IP", "X-Cluster-Client-IP", "Client-IP", "X-Original-Forwarded-For", "Via"),
)
LEADS_ASTRAY = ('"', '"unfinished, ', ",,,,", "unknown", "10.0.0.1, 127.0.0.1", "x" * 7000)


def forged(number: int) -> str:
    """Return an address that is not the attacker's."""
    return f"11.66.6.{number + 1}"


def every_name(number: int) -> list[Line]:
    """Return all headers that an app might trust, with a forged address."""
    claims = {"Forwarded": f"for={forged(number)}"}
    return [(name, claims.get(name, forged(number))) for name in NAMES]


def rotates(target: Target) -> Seen:
    me = target.address()
    return Seen(statuses([target.ask(me, *LOGIN, ("X-Forwarded-For", forged(each))) for each in range(6)]))


def rotates_every_name(target: Target) -> Seen:
    me = target.address()
    return Seen(statuses([target.ask(me, *LOGIN, *every_name(each)) for each in range(6)]))


def locks_out(target: Target) -> Seen:
    me, victim = target.address(), target.address()
    for _ in range(6):
        target.ask(me, *LOGIN, *[(name, victim) for name in NAMES])
    return Seen(statuses([target.ask(victim, *LOGIN) for _ in range(3)]))


def rotates_leftmost(target: Target) -> Seen:
    me = target.client()
    return Seen(statuses([target.through(me, *LOGIN, ("X-Forwarded-For", forged(each))) for each in range(6)]))


def rotates_a_line_of_its_own(target: Target) -> Seen:
    """Simulates HAProxy, which adds a line and keeps the existing ones."""
    me = target.client()
    last = [("X-Forwarded-For", me), ("X-Real-IP", me)]
    return Seen(statuses([target.ask_behind(*LOGIN, ("X-Forwarded-For", forged(each)), *last) for each in range(6)]))


def leads_astray(target: Target) -> Seen:
    me = target.client()
    return Seen(statuses([target.through(me, *LOGIN, ("X-Forwarded-For", claim)) for claim in LEADS_ASTRAY]))


def stands_beside(target: Target) -> Seen:
    return Seen(statuses([target.ask_behind(*LOGIN, *every_name(each), source=BESIDE) for each in range(6)]))


def locks_out_behind(target: Target) -> Seen:
    me, victim = target.client(), target.client()
    for _ in range(6):
        target.through(me, *LOGIN, ("X-Forwarded-For", victim), ("Forwarded", f"for={victim}"))
    return Seen(statuses([target.through(victim, *LOGIN) for _ in range(3)]))


def mapped_forms(target: Target) -> Seen:
    me = target.client()
    first, second = ("".join(f"{int(part):02x}" for part in me.split(".")[half : half + 2]) for half in (0, 2))
    forms = [me, f"::ffff:{me}", f"::ffff:{first}:{second}", f"0:0:0:0:0:FFFF:{me}", f"::FFFF:{me}", f"64:ff9b::{me}"]
    return Seen(statuses([target.through(form, *LOGIN) for form in forms]))


def mapped_strangers(target: Target) -> Seen:
    return Seen(statuses([target.through(f"::ffff:{target.client()}", *LOGIN) for _ in range(6)]))


def walks_its_network(target: Target) -> Seen:
    return Seen(statuses([target.through(f"2600:7:7:7::{each:x}:{each:x}", *LOGIN) for each in range(1, 7)]))


def many_zones(target: Target) -> Seen:
    return Seen(statuses([target.through(f"fe80:0:0:7::1%{zone}", *LOGIN) for zone in "abcdef"]))


def burst(target: Target) -> Seen:
    me = target.address()
    return Seen(sorted(statuses(target.ask_all([Request(*LOGIN, (), me)] * 40))))


ON_IDENTITY = [
    Attack(
        "another X-Forwarded-For each time",
        "CVE-2025-59152 Litestar, CVE-2025-46814 fastapi-guard",
        "6 logins, each with a new X-Forwarded-For, no proxy in front",
        "3 logins per address",
        rotates,
        THREE,
        most=3,
    ),
    Attack(
        "every header that names a client",
        "CVE-2026-118653 Echo, CVE-2026-23848 MyTube",
        f"the same with {len(NAMES)} headers, from X_Forwarded_For to CF-Connecting-IP",
        "3 logins per address",
        rotates_every_name,
        THREE,
        most=3,
    ),
    Attack(
        "locks another client out by his address",
        "CVE-2026-108162 Pingvin",
        "6 logins that claim a victim's address in every header; then the victim logs in 3 times",
        "the victim's 3 logins pass",
        locks_out,
        (200, 200, 200),
        most=3,
        least=3,
    ),
    Attack(
        "leftmost X-Forwarded-For through a proxy",
        "CVE-2026-110724, CVE-2026-110726 api-gateway, CVE-2026-11922 ZenML",
        "6 logins through a proxy that appends the client, each with a new entry at the left",
        "3 logins per client",
        rotates_leftmost,
        THREE,
        most=3,
    ),
    Attack(
        "a line of its own before the proxy's",
        "uvicorn before 0.49",
        "the same with a proxy that adds a line of its own",
        "3 logins per client",
        rotates_a_line_of_its_own,
        THREE,
        most=3,
    ),
    Attack(
        "quotes, commas, junk and 7,000 letters at the left",
        "parsers that read from the left",
        "6 logins through the proxy, each with other junk in front",
        "3 logins per client",
        leads_astray,
        THREE,
        most=3,
    ),
    Attack(
        "past the proxy, from the network beside it",
        "asgi-ratelimit, reverse-proxy recipes that count hops",
        "6 logins straight to the app behind the proxy, with all these headers",
        "3 logins per address that is no proxy",
        stands_beside,
        THREE,
        most=3,
    ),
    Attack(
        "locks another client out through the proxy",
        "CVE-2026-110724 api-gateway",
        "6 logins through the proxy that claim a victim's address; then the victim logs in 3 times",
        "the victim's 3 logins pass",
        locks_out_behind,
        (200, 200, 200),
        most=3,
        least=3,
    ),
    Attack(
        "one IPv4 client in six forms",
        "CVE-2026-39409 Hono, GHSA-5847-rm3g-23mw OpenClaw",
        "6 logins of a client that the proxy names 11.77.0.1, ::ffff:11.77.0.1, ::ffff:b4d:1, 64:ff9b::11.77.0.1, ...",
        "3 logins per client",
        mapped_forms,
        THREE,
        most=3,
    ),
    Attack(
        "IPv4 clients that a dual-stack proxy maps",
        "CVE-2026-30827 express-rate-limit, django-ratelimit 4.1.0",
        "a login each of 6 clients named ::ffff:a.b.c.d",
        "no client uses up another one's logins",
        mapped_strangers,
        (200,) * 6,
        most=6,
        least=6,
    ),
    Attack(
        "an IPv6 client walks its own network",
        "express-rate-limit 8.0.0",
        "6 logins from 6 addresses of one /64",
        "3 logins per /64",
        walks_its_network,
        THREE,
        most=3,
    ),
    Attack(
        "one link-local client with many zones",
        "the zone is text that a client may choose",
        "6 logins from fe80:0:0:7::1%a to %f",
        "3 logins per client",
        many_zones,
        THREE,
        most=3,
    ),
    Attack(
        "40 logins in one moment",
        "GHSA-984p-xq9m-4rjw express-brute, single-packet attacks",
        "40 connections, the last byte of each sent when all others are there",
        "3 logins per address",
        burst,
        (200,) * 3 + (429,) * 37,
        most=3,
    ),
]
