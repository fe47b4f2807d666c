"""Says in one sentence what is wrong: since when, with which clients, and the next step. Pure.

`data` is what `data.json` contains, without its `problem`.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from ipaddress import ip_address, ip_network
from typing import Any, Final, Literal

from msgspec import Struct

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
) -> Problem | None:
    """Return the most urgent problem; None if all is calm.

    `seconds`, `minutes`: the rows of each rule, of the last five minutes and of the last day. `clients`: how often
    each rule refused each client in the last minute or two.
    """
    store, now = data["store"], data["at"]
    if store["state"] != "ok":
        since = "" if store.get("since") is None else f" since {_moment(store['since'], now)}"
        kind = store["kind"]
        return Problem("store", f"{kind[:1].upper()}{kind[1:]} has not replied{since}.", store.get("meaning") or "")
    worst = _worst_rule(data["rules"], seconds)
    if worst is not None:
        return _refusing(worst, clients.get(worst, {}), seconds[worst], minutes.get(worst, ()), now)
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


def _refusing(rule: str, clients: Mapping[str, int], seconds: Rows, minutes: Rows, now: float) -> Problem:
    refused, total = _counts(_settled(seconds)[-_MINUTE:])
    since = _since(seconds, minutes)
    when = f"since {_moment(since, now)}" if since is not None else "for a day or longer"
    text = f"{rule} refuses {round(100 * refused / total)} % of its requests {when}."
    more, who = _clients_refused(clients, refused / _MINUTE)
    steps: list[Mapping[str, Any]] = [{"do": "change", "rule": rule}]
    if who is not None:
        steps.append({"do": "block", "who": who})
    return Problem("refusing", text, more, steps)


def _since(seconds: Rows, minutes: Rows) -> float | None:
    """Return the second, or the minute, of the first refusal without a calm time after it. None: before all rows."""
    rows = _settled(seconds)
    start = _start(rows, _LOOK)
    if start > 0 or not rows:
        return _first_refusal(rows[start:])
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
    return next((at for at, admitted, refused in rows if refused and refused >= SOME * (admitted + refused)), None)


def _clients_refused(clients: Mapping[str, int], total: float) -> tuple[str, Mapping[str, str] | None]:
    """Return a sentence about the clients that are refused most, and the one, or the network, to block.

    `total`: refused requests a second, of all clients. Each client has a share of them.
    """
    refused = sum(clients.values())
    if not refused:
        return "", None
    rates = {key: total * number / refused for key, number in clients.items()}
    networks: dict[str, list[str]] = {}
    for key in rates:
        networks.setdefault(_network_of(key), []).append(key)
    network, keys = max(networks.items(), key=lambda pair: (bool(pair[0]), sum(rates[key] for key in pair[1])))
    in_network = sum(rates[key] for key in keys)
    top = max(rates, key=lambda key: rates[key])
    if rates[top] >= _MOST_OF * total:
        who = {"ip": top[3:]} if _network_of(top) else {"key": top}
        return f"{top[3:] if _network_of(top) else top} is refused {_shown(rates[top])} a second.", who
    if network and len(keys) >= _FEWEST and in_network >= _MOST_OF * total:
        return f"{len(keys)} addresses of {network} are refused {_shown(in_network)} a second.", {"ip": network}
    return f"{len(rates)} clients are refused {_shown(total)} a second.", None


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
