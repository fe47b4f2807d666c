"""Says in one sentence what is wrong: since when, with which clients, and the next step. Pure.

`data` is what `data.json` contains, without its `problem`.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from ipaddress import ip_address, ip_network
from typing import Any, Final, Literal

from msgspec import Struct

from ratelimit_mw.dashboard.concerned import block_of
from ratelimit_mw.rules.override_entries import Override
from ratelimit_mw.rules.plan import BLOCKLIST

SETTLING: Final = 2  # the last seconds, which processes are still reporting
LEAST_REFUSED: Final = 30  # in a minute; fewer are no problem, whatever their share
MUCH: Final = 0.2  # the share of refusals from which a rule is a problem
SOME: Final = 0.1  # the share above which a problem that was found goes on, looking back
_LOOK: Final = 10  # seconds, the step of looking back
_MINUTE: Final = 60
_DAY: Final = 86_400
_MOST_OF: Final = 0.5  # the share of refusals from which one client, or one network, is named
_FEWEST: Final = 3  # addresses that are named as a network
_PREFIXES: Final = {4: 24, 6: 48}

Rows = Sequence[Sequence[int]]  # time, admitted, refused; the oldest first, without gaps


class Problem(Struct, frozen=True):
    """A problem. `text`: what and since when. `more`: which clients, or what it means. `steps`: what to do about it.

    A step is `{"do": "change", "rule": ...}` or `{"do": "block", "who": ...}`.
    """

    kind: Literal["store", "processes", "refusing", "settings"]
    text: str
    more: str = ""
    steps: Sequence[Mapping[str, Any]] = ()


def problem(
    data: Mapping[str, Any],
    seconds: Mapping[str, Rows],
    minutes: Mapping[str, Rows],
    clients: Mapping[str, Mapping[str, int]],
    overrides: Sequence[Override] = (),
) -> Problem | None:
    """Return the most urgent problem; None if all is calm.

    `seconds`, `minutes`: the rows of each rule, of the last five minutes and of the last day. `clients`: how often
    each rule refused each client in the last minute or two. `overrides`: those in force.
    """
    store, now = data["store"], data["at"]
    if store["state"] != "ok":
        since = "" if store.get("since") is None else f" since {_moment(store['since'], now)}"
        kind = store["kind"]
        return Problem("store", f"{kind[:1].upper()}{kind[1:]} has not replied{since}.", store.get("meaning") or "")
    worst = _worst_rule(data["rules"], seconds)
    if worst is not None:
        refused = _Refused.of(_settled(seconds[worst]), minutes.get(worst, ()))
        return _refusing(worst, refused, clients.get(worst, {}), overrides, now)
    known, processes = data.get("processes_known") or 0, data["processes"]
    if known > processes:
        some = "1 process does" if known - processes == 1 else f"{known - processes} processes do"
        return Problem(
            "processes",
            f"{some} not report: {processes} of {known} are here.",
            "It may be blocked, or was killed. What it limits is not shown here.",
        )
    if len(data["digests"]) > 1:
        return Problem(
            "settings",
            f"The processes have {len(data['digests'])} different settings.",
            "A deployment may be under way, or a process could not take over a changed file: its log says why.",
        )
    return None


def _worst_rule(rules: Sequence[Mapping[str, Any]], seconds: Mapping[str, Rows]) -> str | None:
    """Return the enforcing rule with the most refusals, if they are too many."""
    refused = {}
    for rule in rules:
        name = rule["rule"]
        rows = _settled(seconds.get(name, ()))[-_MINUTE:]
        count, total = _counts(rows)
        if rule["mode"] == "on" and name != BLOCKLIST and count >= LEAST_REFUSED and count >= MUCH * total:
            refused[name] = count
    return max(refused, key=lambda name: refused[name]) if refused else None


class _Refused(Struct, frozen=True):
    """What a rule refused. `since`: None for a day or longer. `until`: None if it goes on.

    `share`, `rate`: of its requests, and a second, within the last minute of that time.
    """

    since: float | None
    until: float | None
    share: float
    rate: float

    @classmethod
    def of(cls, rows: Rows, minutes: Rows) -> "_Refused":
        """Return what the rows say; some of them refuse."""
        last = max(index for index, row in enumerate(rows) if _is_refusing(row))
        rows, calm = rows[: last + 1], len(rows) - 1 - last
        since = _since(rows, minutes)
        recent = [row for row in rows[-_MINUTE:] if since is None or row[0] >= since]
        refused, total = _counts(recent)
        return cls(since, rows[-1][0] if calm >= _LOOK else None, refused / total, refused / len(recent))


def _refusing(
    rule: str, refused: _Refused, clients: Mapping[str, int], overrides: Sequence[Override], now: float
) -> Problem:
    share = f"{round(100 * refused.share)} % of its requests"
    since = None if refused.since is None else _moment(refused.since, now)
    if refused.until is None:
        text = f"{rule} refuses {share} {'for a day or longer' if since is None else f'since {since}'}."
    else:
        text = f"{rule} refused {share} {'' if since is None else f'from {since} '}to {_moment(refused.until, now)}."
    more, who = _clients_refused(
        clients, refused, lambda keys: all(block_of(key, rule, overrides) is not None for key in keys)
    )
    steps: list[Mapping[str, Any]] = [{"do": "change", "rule": rule}]
    if who is not None:
        steps.append({"do": "block", "who": who})
    return Problem("refusing", text, more, steps)


def _since(rows: Rows, minutes: Rows) -> float | None:
    """Return the second, or the minute, of the first refusal without a calm time after it. None: before all rows.

    `rows`: up to a refusal.
    """
    start = _start(rows, _LOOK)
    if start > 0:
        return _first_refusal(rows[min(start, len(rows) - 1) :])
    earlier = [row for row in minutes if row[0] < rows[0][0]]
    first = _first_refusal([*earlier[_start(earlier, 1) :], *rows])
    is_older = first is not None and len(earlier) >= _DAY // _MINUTE - _LOOK and first < earlier[_LOOK][0]
    return None if is_older else first


def _start(rows: Rows, step: int) -> int:
    """Return the index from which on each step has more than a few refusals, or no request."""
    start = len(rows)
    while start > 0:
        refused, total = _counts(rows[max(0, start - step) : start])
        if total and refused < SOME * total:
            break
        start = max(0, start - step)
    return start


def _first_refusal(rows: Rows) -> float | None:
    return next((row[0] for row in rows if _is_refusing(row)), None)


def _is_refusing(row: Sequence[int]) -> bool:
    _, admitted, refused = row
    return refused > 0 and refused >= SOME * (admitted + refused)


def _clients_refused(
    clients: Mapping[str, int], refused: _Refused, are_blocked: Callable[[Sequence[str]], bool]
) -> tuple[str, Mapping[str, str] | None]:
    """Return a sentence about the clients that are refused most, and the one, or the network, to block.

    Each client has a share of what is refused. None is to be blocked if `are_blocked` says that it is.
    """
    number = sum(clients.values())
    if not number:
        return "", None
    total = refused.rate
    rates = {key: total * count / number for key, count in clients.items()}
    networks: dict[str, list[str]] = {}
    for key in rates:
        networks.setdefault(_network_of(key), []).append(key)
    network, keys = max(networks.items(), key=lambda pair: (bool(pair[0]), sum(rates[key] for key in pair[1])))
    in_network = sum(rates[key] for key in keys)
    top = max(rates, key=lambda key: rates[key])
    is_over = refused.until is not None
    if rates[top] >= _MOST_OF * total:
        is_address = bool(_network_of(top))
        name, rate, keys = top[3:] if is_address else top, rates[top], [top]
        who = {"ip": name} if is_address else {"key": name}
    elif network and len(keys) >= _FEWEST and in_network >= _MOST_OF * total:
        name, rate, who = f"{len(keys)} addresses of {network}", in_network, {"ip": network}
    else:
        return f"{len(rates)} clients {'were' if is_over else 'are'} refused {_shown(total)} a second.", None
    present, past = ("is", "was") if len(keys) == 1 else ("are", "were")
    text = f"{name} {past if is_over else present} refused {_shown(rate)} a second"
    return (f"{text}, and {present} blocked now.", None) if are_blocked(keys) else (f"{text}.", who)


def _network_of(key: str) -> str:
    """Return the network of a key that is one readable address; else nothing."""
    try:
        address = ip_address(key.removeprefix("ip=")) if key.startswith("ip=") else None
    except ValueError:
        return ""
    return "" if address is None else str(ip_network((address, _PREFIXES[address.version]), strict=False))


def _settled(rows: Rows) -> Rows:
    return rows[:-SETTLING]


def _counts(rows: Rows) -> tuple[int, int]:
    """Return how many were refused, and of how many."""
    refused = sum(row[2] for row in rows)
    return refused, refused + sum(row[1] for row in rows)


def _shown(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}"  # noqa: PLR2004  # two digits


def _moment(time: float, now: float) -> str:
    """Return a time as text: in UTC, with its date if that is another day."""
    moment, today = (datetime.fromtimestamp(at, UTC) for at in (time, now))
    return f"{moment:%H:%M:%S}" if moment.date() == today.date() else f"{moment:%m-%d %H:%M}"
