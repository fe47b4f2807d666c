"""The ratios of counts that this package is to keep."""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

Rows = Mapping[str, Mapping[str, Mapping[str, float]]]  # scenario, contender, what is counted: added to a request


class Figure(NamedTuple):
    """A count of a contender in a scenario."""

    scenario: str
    contender: str
    counted: str = "instructions"


class Target(NamedTuple):
    """The most that one figure may be, over another one."""

    what: str
    above: Figure
    below: Figure
    most: float


def _functions(what: str, scenario: str, above: str, below: str) -> Target:
    return Target(
        f"functions entered: {what}",
        Figure(scenario, f"ours, {above}", "functions"),
        Figure(scenario, f"ours, {below}", "functions"),
        1.35,
    )


def _over(what: str, scenario: str, peer: str, most: float, ours: str = "ours") -> Target:
    return Target(what, Figure(scenario, ours), Figure(scenario, peer), most)


TARGETS: Final = (
    _over("ASGI, one limit / asgi-ratelimit", "asgi", "asgi-ratelimit", 0.85),
    _over("ASGI, a latency goal / none", "asgi-goal", "ours, no goal", 1.16, "ours, goal"),
    _over("ASGI, three limits / one limit", "asgi-3", "ours, 1 limit", 2.4),
    _over("ASGI, three limits / asgi-ratelimit's three", "asgi-3", "asgi-ratelimit", 1.6),
    _over("proxy, 10 rules, 1,000 clients / asgi-ratelimit", "proxy-1000", "asgi-ratelimit", 0.9),
    Target("proxy, 6,000 clients / 1,000 clients", Figure("proxy-6000", "ours"), Figure("proxy-1000", "ours"), 1.1),
    _over("proxy, every client new / asgi-ratelimit", "proxy-new", "asgi-ratelimit", 0.95),
    _functions("two addresses in X-Forwarded-For / one", "forwarded", "two addresses", "one address"),
    _functions("an entry in exempt and safelist / none", "lists", "exempt and safelist", "no lists"),
    _functions("IPv6 / IPv4, 6,000 peers in turn", "families", "IPv6", "IPv4"),
    _over("Redis, one task, one limit / a hit of limits", "redis-1x1", "limits, no headers", 0.45),
    _over("Redis, 64 tasks, three limits / floor", "redis-64x3", "floor", 1.9),
    _over("Flask, middleware / flask-limiter", "flask", "flask-limiter", 0.065, "ours, middleware"),
    _over("Flask, extension / floor", "flask", "floor, extension", 1.1, "ours, extension"),
    _over("Django / floor", "django", "floor", 1.9),
    _over("FastAPI, dependency / floor", "fastapi", "floor", 1.3),
)


def verdicts(rows: Rows) -> Iterator[tuple[Target, float]]:
    """Yield each target whose figures were counted, with the ratio."""
    for target in TARGETS:
        above, below = (_figure(rows, figure) for figure in (target.above, target.below))
        if above is not None and below is not None:
            yield target, above / below


def _figure(rows: Rows, figure: Figure) -> float | None:
    return rows.get(figure.scenario, {}).get(figure.contender, {}).get(figure.counted)
