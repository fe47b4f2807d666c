"""Builds what the page and programs read, `data.json`, from what was read from the store. Pure."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from math import isfinite
from typing import Any, Final

from msgspec import structs, to_builtins

from ratelimit_mw.admin.buckets import split_key as split_any_key
from ratelimit_mw.dashboard.concerned import block_of
from ratelimit_mw.dashboard.reader import Snapshot, rows, total
from ratelimit_mw.dashboard.sentence import problem
from ratelimit_mw.dashboard.shown_rules import ShownRule
from ratelimit_mw.engine.live import ProcessInfo
from ratelimit_mw.metrics.families import BOUND_LABELS, BOUNDS
from ratelimit_mw.metrics.sample import checksum
from ratelimit_mw.rules.override_entries import EVERYONE
from ratelimit_mw.rules.plan import BLOCKLIST
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores.live import BY_MINUTE, BY_SECOND, CLIENTS, KEPT_MINUTES, KEPT_SECONDS

_FRESH: Final = 3  # seconds since the report of a process whose figures count
HERE: Final = 10  # seconds since the report of a process that is here; on a busy host, some are late
_MINUTE: Final = 60
_SPARK: Final = 60  # numbers of a rule
_SPARK_STEP: Final = 5  # seconds
_CLIENT_STEP: Final = 15  # seconds, of a client's numbers
_MOST_CLIENTS: Final = 50
_MOST_CHANGES: Final = 50
_RECENT: Final = 5  # seconds in which refusals are compared with those that are shown
_OFFICE_PATHS: Final = 5  # of the refusals that are shown; an attack is mostly on fewer
_CLIENTS: Final = 600  # seconds for which a rule's clients are counted

_BLOCKS: Final = ShownRule(BLOCKLIST, None, "clients that are blocked, and those of the blocklist", "", "", BLOCKLIST)

Data = dict[str, Any]


def split_key(key: str) -> tuple[str, str]:
    """Return identity and rule of a key, as text that JSON can contain: clients choose a part of it."""
    return split_any_key(key.encode("utf-8", "replace").decode())


def build(
    snapshot: Snapshot,
    settings: Settings,
    shown: Mapping[str, ShownRule],
    name: str,
    seconds: int,
    rule: str | None = None,
    span: int = _CLIENTS,
) -> Data:
    """Return `data.json` without what depends on the viewer. `seconds`: of the sums and of the series.

    `rule`: the series is that of this rule. `span`: seconds of the clients that were refused most.
    """
    by_second, by_minute = snapshot.rows[BY_SECOND.name], snapshot.rows[BY_MINUTE.name]
    last = snapshot.last_second
    past = range(last - KEPT_SECONDS + 1, last + 1)
    minutes = range(last // _MINUTE - KEPT_MINUTES + 1, last // _MINUTE + 1)
    if seconds <= KEPT_SECONDS:
        asked, history, unit = range(last - seconds + 1, last + 1), by_second, 1
    else:
        number = min(-(-seconds // _MINUTE), KEPT_MINUTES)
        asked, history, unit = minutes[-number:], by_minute, _MINUTE
    fresh = [info for seen, info in snapshot.processes if seen >= snapshot.at - _FRESH]
    here = [info for seen, info in snapshot.processes if seen >= snapshot.at - HERE]
    latest = _by_rule(snapshot.most_refused.get(_MINUTE, {}))
    names = dict.fromkeys([*shown, *total(by_second, past), *total(history, asked)])
    data: Data = {
        "at": snapshot.at,
        "name": name,
        "processes": len(here),
        "processes_known": len(snapshot.processes),
        "digests": sorted({info.digest for info in here}),
        "plain_keys": settings.plain_keys,
        "remember_refused": settings.remember_refused > 0,
        "metrics": settings.metrics,
        "store": _store(snapshot, settings, fresh),
        "yesterday": _yesterday(by_minute, last // _MINUTE - KEPT_MINUTES),
        "limited": _limited(latest),
        "waiting": _waiting(fresh),
        "at_work": _at_work(fresh),
        "series": rows(history, asked, unit, rule),
        "rules": _rules(snapshot, shown, names, total(history, asked), past),
        "refused_most": _refused_most(snapshot, span),
        "refusals": _refusals(snapshot),
        "sampled": _sampled(snapshot, last),
        "changes": _changes(snapshot),
        "overrides": [structs.asdict(one) for one in snapshot.overrides],
    }
    found = problem(
        data,
        {one: rows(by_second, past, 1, one) for one in names},
        {one: rows(by_minute, minutes, _MINUTE, one) for one in names},
        latest,
        snapshot.overrides,
    )
    data["problem"] = None if found is None else to_builtins(found)
    return data


def _store(snapshot: Snapshot, settings: Settings, fresh: Sequence[Any]) -> Data:
    away = [since for since in (snapshot.away, *(info.away for info in fresh)) if since is not None]
    calls = sum(info.calls for info in fresh)
    kind = kind_of(settings.store)
    return {
        "state": "away" if away else "ok",
        "kind": kind,
        "is_own": counts_alone(settings),
        "since": min(away, default=None),
        "call": sum(info.call_seconds for info in fresh) / calls if calls else None,
        "p99": _p99(fresh, settings.store_timeout),
        "timeout": settings.store_timeout,
        "without": float(sum(info.without for info in fresh)),
        "meaning": _meaning(settings, max(1, len(snapshot.processes)), kind) if away else "",
    }


def _p99(fresh: Sequence[ProcessInfo], timeout: float) -> float | None:
    """Return the time within which 99 of 100 calls of the store were answered; None if there was no call."""
    counts = Counter[str]()
    for info in fresh:
        counts.update(info.bounds)
    bounds = (*BOUNDS, max(BOUNDS[-1], timeout))
    upto = zip(bounds, accumulate(counts[label] for label in BOUND_LABELS), strict=True)
    return next((bound for bound, answered in upto if answered and answered >= 0.99 * counts.total()), None)


def kind_of(store: object) -> str:
    """Return the word for a store in a sentence."""
    text = store.partition("://")[0] if isinstance(store, str) else type(store).__name__.lower()
    for part, word in (("memory", "memory"), ("sqlite", "the file"), ("redis", "Redis"), ("unix", "Redis")):
        if part in text:
            return word
    return "the store"


def counts_alone(settings: Settings) -> bool:
    """Return whether the page sees the requests of its own process only."""
    return isinstance(settings.store, str) and settings.store.startswith("memory:") and not settings.metrics_folder


def _meaning(settings: Settings, processes: int, kind: str) -> str:
    """Return what it means that the store gives no answer."""
    number = "the process" if processes == 1 else f"each of the {processes} processes"
    told = {
        "allow": "The app serves all requests without limits.",
        "deny": "The app refuses all requests that have a limit, with 503.",
        "local": f"The app serves requests, and {number} counts by itself, so a client may get up to {processes} x its "
        "quota.",
    }[settings.on_store_error]
    return f"{told} Resets and changes wait until {kind} is back."


def _yesterday(by_minute: Any, minute: int) -> Sequence[float] | None:
    counts = by_minute.get(minute)
    if counts is None:
        return None
    return [sum(one[index] for one in counts.values()) / _MINUTE for index in (0, 1)]


def _by_rule(refused: Mapping[str, int]) -> Mapping[str, Mapping[str, int]]:
    """Return how often each rule refused each client."""
    found: dict[str, dict[str, int]] = {}
    for key, number in refused.items():
        identity, rule = split_key(key)
        found.setdefault(rule, {})[identity] = number
    return found


def _limited(latest: Mapping[str, Mapping[str, int]]) -> Data | None:
    if not latest:
        return None
    rule = max(latest, key=lambda name: len(latest[name]))
    return {
        "clients": len({client for some in latest.values() for client in some}),
        "rule": rule,
        "of_rule": len(latest[rule]),
    }


def _waiting(fresh: Sequence[Any]) -> Sequence[Data]:
    waiting = Counter[str]()
    for info in fresh:
        waiting.update(info.waiting)
    return [{"rule": rule, "waiting": number} for rule, number in waiting.most_common()]


def _at_work(fresh: Sequence[Any]) -> Data | None:
    """Return the requests at work in all processes, and the worst of what they reach; None without a latency goal."""
    found = [info.at_work for info in fresh if info.at_work is not None]
    if not found:
        return None
    return {
        "now": sum(one.now for one in found),
        "limit": sum(one.limit for one in found),
        "goal": max(one.goal for one in found),
        "reached": max(one.reached for one in found),
    }


def _rules(
    snapshot: Snapshot, shown: Mapping[str, ShownRule], names: Mapping[str, None], sums: Mapping[str, Any], past: range
) -> Sequence[Data]:
    by_second = snapshot.rows[BY_SECOND.name]
    minute = total(by_second, past[-_MINUTE:])
    clients = Counter(split_key(key)[1] for key in snapshot.most_refused.get(_CLIENTS, {}))
    switches = {one.rule: one for one in snapshot.overrides if one.who == EVERYONE}
    found = []
    for name in names:
        described = shown.get(name) or (_BLOCKS if name == BLOCKLIST else ShownRule(name, None, "", "", "", "on"))
        of_all = None if described is _BLOCKS else switches.get(None)  # a switch lifts no block
        is_off = of_all is not None and of_all.action == "off"  # comes before the switch of a rule
        switch = of_all if is_off else switches.get(name) or of_all
        limits = described.limits if switch is None or switch.limits is None else switch.limits
        mode = switch.action if switch is not None and switch.action in ("off", "shadow") else described.mode
        index = 2 if mode == "shadow" else 1
        spark = [
            sum(by_second.get(at, {}).get(name, (0, 0, 0))[index] for at in past[start : start + _SPARK_STEP])
            for start in range(0, _SPARK * _SPARK_STEP, _SPARK_STEP)
        ]
        admitted, refused, shadow = sums.get(name, (0, 0, 0))
        found.append(
            {
                **{field: value for field, value in structs.asdict(described).items() if field != "head"},
                "admitted": admitted,
                "refused": refused,
                "shadow": shadow,
                "minute": minute.get(name, (0, 0, 0)),
                "limits": limits,
                "mode": mode,
                "until": None if switch is None else switch.until,
                "clients": clients[name],
                "spark": spark,
            }
        )
    return sorted(found, key=lambda one: (-one["minute"][1], -one["refused"], -one["shadow"]))


def _refused_most(snapshot: Snapshot, span: int) -> Sequence[Data]:
    free_at: dict[str, float] = {}
    paths: defaultdict[str, set[str]] = defaultdict(set)
    for one in snapshot.refusals:
        paths[one.refusal.key].add(one.refusal.path.partition("?")[0])
        free_at[one.refusal.key] = one.refusal.at + one.refusal.retry_after
    counts = snapshot.most_refused.get(span, {})
    shown = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:_MOST_CLIENTS]
    sparks = _client_sparks(snapshot, [key for key, _ in shown])
    found = []
    for key, refused in shown:
        identity, rule = split_key(key)
        free_in = free_at.get(key, snapshot.at) - snapshot.at
        block = block_of(identity, rule, snapshot.overrides)
        found.append(
            {
                "key": identity,
                "rule": rule,
                "refused": refused,
                "free_in": free_in if key in free_at and free_in > 0 and isfinite(free_in) else None,
                "spark": sparks.get(key),
                "note": _note(paths[key]),
                "blocked": None if block is None else block.id,
            }
        )
    return found


def _note(paths: Collection[str]) -> str:
    return f"{len(paths)} paths lately: an office?" if len(paths) >= _OFFICE_PATHS else ""


def _client_sparks(snapshot: Snapshot, keys: Sequence[str]) -> Mapping[str, Sequence[int]]:
    """Return the refusals of clients in the last five minutes, of those that are in the sample."""
    start = snapshot.last_second - KEPT_SECONDS + 1
    sparks = {key: [0] * (KEPT_SECONDS // _CLIENT_STEP) for key in keys if checksum(key) < snapshot.below}
    for at, counts in snapshot.rows[CLIENTS.name].items():
        if start <= at <= snapshot.last_second:
            for key in counts.keys() & sparks.keys():
                sparks[key][(at - start) // _CLIENT_STEP] += counts[key][1]
    return sparks


def _refusals(snapshot: Snapshot) -> Sequence[Data]:
    found = []
    for one in reversed(snapshot.refusals):
        identity, rule = split_key(one.refusal.key)
        line = {"method": one.refusal.method, "path": one.refusal.path}
        found.append({"id": one.number, "at": one.refusal.at, "key": identity, "rule": rule, **line})
    return found


def _sampled(snapshot: Snapshot, last: int) -> int:
    """Return n if one of n recent refusals is among those that are shown."""
    recent = range(last - _RECENT + 1, last + 1)
    refused = sum(counts[1] for counts in total(snapshot.rows[BY_SECOND.name], recent).values())
    number = sum(recent.start <= one.refusal.at < recent.stop for one in snapshot.refusals)
    return max(1, -(-refused // number)) if number else 1


def _changes(snapshot: Snapshot) -> Sequence[Data]:
    undone = {record.undoes for record in snapshot.records}
    ids = {one.id for one in snapshot.overrides}
    found: list[Data] = [
        {"id": f"settings {digest}", "at": at, "by": "deployment", "what": f"settings {digest}", "note": ""}
        | {"undone": False, "can_undo": False}
        for digest, at in snapshot.settings_since.items()
    ]
    for record in snapshot.records[:_MOST_CHANGES]:
        is_undone = record.change.id in undone
        in_force = any(one.id in ids for one in record.added)
        ended = any(one.until > snapshot.at for one in record.removed)
        change = {**structs.asdict(record.change), "undone": is_undone}
        found.append({**change, "can_undo": not is_undone and (in_force or ended)})
    return sorted(found, key=lambda one: -one["at"])[:_MOST_CHANGES]
