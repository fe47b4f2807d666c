"""Runs the table of scenarios: test parameters, clock, stores and checks."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Protocol

import http_sf
import pytest

from ratelimit_mw.core import log as notices
from ratelimit_mw.core.limit import Charge, Decision
from ratelimit_mw.engine import base_gate, usage
from ratelimit_mw.http import response
from ratelimit_mw.metrics.families import REFUSALS, REQUESTS
from ratelimit_mw.metrics.registry import COUNTS
from ratelimit_mw.stores.fallback import FallbackStore
from ratelimit_mw.stores.redis import AsyncRedisStore, RedisStore, async_transport, sync_transport, url
from ratelimit_mw.testing import Call, Clock, RecordingStore
from web.faces import ANSWERED_OUTSIDE, FACES
from web.scenario import Answer, Scenario, Step
from web.scenarios import SCENARIOS
from web.scenarios_settlements import AFTER

REFUSED = (403, 429, 503)
FIELDS = ("ratelimit", "ratelimit-policy")
PARAMETERS = ("q", "w", "ratelimit-mw-burst")
LEGACY = ("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset")


def rows(scenarios: Sequence[Scenario]) -> list[Any]:
    return [
        pytest.param(scenario, id=scenario.name, marks=[pytest.mark.promise(n) for n in scenario.promises])
        for scenario in scenarios
    ]


ALL_ROWS = rows((*SCENARIOS, *AFTER))  # with settlements after the response, for tests that can wait for them
LONG = 5.0  # seconds for the store; no request waits for a settlement. Startup checks warn of more
PATIENCE = 60.0  # seconds to connect to Redis and for its replies; a busy machine must not look failed


class TableStore(Protocol):
    """A store that records its calls, and raises `error` if that is set."""

    calls: list[Call]
    error: Exception | None


def tell_time(clock: Clock, patch: Callable[[object, str, object], None] = setattr) -> Callable[[], RecordingStore]:
    """Use this clock for the store, the fallback store and the legacy headers. Returns the class of the store."""

    class Told(RecordingStore):
        def __init__(self) -> None:
            super().__init__(clock=clock)

    class ToldLocal(FallbackStore):
        def __init__(self, share: float) -> None:
            super().__init__(share, clock=clock)

    patch(base_gate, "FallbackStore", ToldLocal)
    patch(response, "time", SimpleNamespace(time=clock))
    patch(usage, "time", SimpleNamespace(monotonic=clock))
    patch(notices, "_quiet_until", {})
    for module in (async_transport, sync_transport, url):
        patch(module, "CONNECT_TIMEOUT", PATIENCE)
    return Told


class RecordingRedis(RedisStore):
    """A `RedisStore` that records takes and settlements. Takes raise `error`, as those of `RecordingStore` do."""

    def __init__(self, url: str, clock: Clock) -> None:
        super().__init__(url, timeout=PATIENCE, deny_cache=0, clock=clock)
        self.calls: list[Call] = []
        self.error: Exception | None = None

    def take(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        self.calls.append(("take", tuple(charges)))
        if self.error is not None:
            raise self.error
        return super().take(charges)

    def peek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        if self.error is not None:
            raise self.error
        return super().peek(charges)

    def settle(self, charges: Sequence[Charge]) -> None:
        super().settle(charges)
        self.calls.append(("settle", tuple(charges)))  # after the settlement, because tests wait for this entry


class RecordingAsyncRedis(AsyncRedisStore):
    """A `RecordingRedis` for asyncio."""

    def __init__(self, url: str, clock: Clock) -> None:
        super().__init__(url, timeout=PATIENCE, deny_cache=0, clock=clock)
        self.calls: list[Call] = []
        self.error: Exception | None = None

    async def atake(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        self.calls.append(("take", tuple(charges)))
        if self.error is not None:
            raise self.error
        return await super().atake(charges)

    async def apeek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        if self.error is not None:
            raise self.error
        return await super().apeek(charges)

    async def asettle(self, charges: Sequence[Charge]) -> None:
        await super().asettle(charges)
        self.calls.append(("settle", tuple(charges)))


def begin(store: TableStore, clock: Clock, step: Step) -> None:
    """Set the clock and the store for a step."""
    clock.advance(step.wait)
    store.error = ConnectionError("down") if step.broken else None
    store.calls.clear()


def play(face: str, scenario: Scenario, store: TableStore, clock: Clock) -> None:
    """Run the steps of a scenario in order, without metrics."""
    play_under(face, scenario, {"store": store, "store_timeout": LONG, **scenario.settings}, store, clock)


def play_counted(face: str, scenario: Scenario, store: TableStore, clock: Clock) -> None:
    """Run the steps with metrics, which must count each step with limits once, with its outcome and source."""
    COUNTS.forget()
    try:
        settings = {"store": store, "store_timeout": LONG, "metrics": True, **scenario.settings}
        play_under(face, scenario, settings, store, clock)
        counts = COUNTS.own_counts().items()
    finally:
        COUNTS.forget()
    outcomes, sources = Counter[str](), Counter[str]()
    for (_, outcome, source), count in [(labels, count) for (name, labels), count in counts if name == REQUESTS.name]:
        outcomes[outcome] += count
        sources[source] += count * (outcome == "admitted")
    limited = [step for step in scenario.steps if step.usage is None]
    met = [step for step in limited if step.source or step.status in REFUSED]
    assert outcomes == Counter("refused" if step.status in REFUSED else "admitted" for step in met)
    assert sources >= Counter(step.source for step in met if step.status == 200)  # only these show the source
    refusing = sum(count for (name, labels), count in counts if name == REFUSALS.name and labels[2] == "false")
    assert refusing >= sum(step.status == 429 for step in met)  # several limits may refuse one request


def play_under(face: str, scenario: Scenario, settings: Mapping[str, Any], store: TableStore, clock: Clock) -> None:
    send = FACES[face](settings)
    for number, step in enumerate(scenario.steps):
        begin(store, clock, step)
        answer = send(step)
        where = f"step {number}: {answer}"
        verbs = [verb for verb, _ in store.calls if verb != "peek"]
        assert verbs == ["take"] * step.asked + ["settle"] * step.settled, where
        check(face, step, answer, clock.now, where)


def check(face: str, step: Step, answer: Answer, now: float, where: str) -> None:
    """Check the response, except the headers that a server adds."""
    if step.fails and face in ANSWERED_OUTSIDE:
        step = replace(step, state=(), policy=None, legacy=None)
    assert answer.status == step.status, where
    check_fields(step, answer, now, where)
    if step.status in REFUSED:
        check_refusal(step, answer, where)
        return
    assert answer.field("retry-after") == [], where
    if step.usage is not None:
        assert answer.body == step.body, where
        fields = {"content-type": "application/json", "cache-control": "no-store"}
        assert fields.items() <= dict(answer.headers).items(), where
        return
    if step.status == 200:
        assert answer.field("x-source") == [step.source], where
        assert answer.body == step.body, where


def check_fields(step: Step, answer: Answer, now: float, where: str) -> None:
    expected = [[(name, {"r": r} | ({} if t is None else {"t": t})) for name, r, t in step.state]] if step.state else []
    assert [parsed(line) for line in answer.field("ratelimit")] == expected, where
    policies = [parsed(line) for line in answer.field("ratelimit-policy")]
    names = [[name for name, _ in items] for items in expected]
    assert [[name for name, _ in items] for items in policies] == names, where
    if step.policy is not None:
        named = [(name, dict(zip(PARAMETERS, numbers, strict=False))) for name, *numbers in step.policy]
        assert policies == [named], where
    legacy = [answer.field(name) for name in LEGACY]
    if step.legacy is None:
        assert legacy == [[], [], []], where
    else:
        limit, remaining, reset = step.legacy
        assert legacy == [[str(limit)], [str(remaining)], [] if reset is None else [str(int(now) + reset)]], where


def check_refusal(step: Step, answer: Answer, where: str) -> None:
    assert answer.body == step.body, where
    plain = {name: value for name, value in answer.headers if name not in (*FIELDS, *LEGACY)}
    assert plain == step.plain_headers, where
    assert len(dict(answer.headers)) == len(answer.headers), where


def parsed(line: str) -> list[Any]:
    found: Any = http_sf.parse(line.encode("ascii"), tltype="list")
    return list(found)
