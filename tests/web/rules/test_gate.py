"""Tests how a gate calls callables and stores, and what it does if they fail or are invalid."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import pytest

from ratelimit_mw import Charge, ConfigError, Decision, MemoryStore, StoreError, Verdict
from ratelimit_mw.engine.gate import AsyncGate, Gate
from ratelimit_mw.http.request import Request
from ratelimit_mw.settings import Settings
from ratelimit_mw.testing import Clock, RecordingStore
from web.plain_request import PlainRequest

pytestmark = pytest.mark.usefixtures("speaks_again")

ADMITTED = Decision(True, 5, 4, 0.0, 60.0, 60.0, 0.0, 0)


def threads(**settings: Any) -> Verdict | None:
    return Gate(Settings(**{"limits": "5/minute", **settings})).admit(PlainRequest("/path"))


def tasks(**settings: Any) -> Verdict | None:
    return asyncio.run(AsyncGate(Settings(**{"limits": "5/minute", **settings})).admit(PlainRequest("/path")))


BOTH = pytest.mark.parametrize("admit", [threads, tasks])
Admit = Callable[..., Verdict]


class Answers(MemoryStore):
    """A store whose `take` returns or raises `answer`."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def take(self, _: Sequence[Charge]) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


class Anything:
    def __repr__(self) -> str:
        return "Anything()"  # without the address of the object, which differs in each process


@BOTH
@pytest.mark.promise(8)
@pytest.mark.parametrize(
    "answer",
    [
        None, [], (), {}, "", "x", 7, Anything(), [None], [0], ["x"], [ADMITTED, ADMITTED], {0: None},
        StoreError("down"), ConfigError("of the store"), OSError(), TimeoutError(), ZeroDivisionError(), KeyError(0),
        AssertionError(), RecursionError(), MemoryError(), StopIteration(),
    ],
    ids=repr,
)  # fmt: skip
def test_an_invalid_store_reply_or_exception_is_a_store_failure(answer: Any, admit: Admit) -> None:
    for mode, allowed, source in [
        ("allow", True, "allowed_on_error"),
        ("deny", False, "denied_on_error"),
        ("local", True, "local"),
    ]:
        verdict = admit(store=Answers(answer), on_store_error=mode)
        assert (verdict.allowed, verdict.source) == (allowed, source)


@pytest.mark.promise(8)
def test_a_hanging_store_times_out() -> None:
    class Hangs:
        async def atake(self, _: Sequence[Charge]) -> Sequence[Decision]:
            await asyncio.sleep(3600)
            raise AssertionError

        apeek = asettle = areset = atake

        async def aclose(self) -> None: ...

    verdict = tasks(store=Hangs(), on_store_error="deny", store_timeout=0.001)
    assert verdict is not None
    assert verdict.source == "denied_on_error"


@pytest.mark.promise(8)
def test_a_canceled_request_propagates_its_cancellation() -> None:
    class Waits(MemoryStore):
        async def atake(self, _: Sequence[Charge]) -> Sequence[Decision]:
            await asyncio.sleep(3600)
            raise AssertionError

    async def run() -> None:
        gate = AsyncGate(Settings(limits="5/minute", store=Waits(), store_timeout=60.0))
        request = asyncio.create_task(gate.admit(PlainRequest()))
        await asyncio.sleep(0)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request

    asyncio.run(run())


@BOTH
def test_repeated_store_failures_are_logged_once(admit: Admit, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(5):
        admit(store=Answers(OSError("down")))
    assert caplog.messages == ["ratelimit_mw: store: failed (OSError); on_store_error decides"]


def sync_key(request: Request) -> str:
    return request.path


async def async_key(request: Request) -> str:
    await asyncio.sleep(0)
    return request.path


async def async_raises(request: Request) -> str:
    raise RuntimeError(request.path)


def hands_on(request: Request) -> Any:
    return async_key(request)


class AsyncObject:
    async def __call__(self, request: Request) -> str:
        return request.path


@pytest.mark.parametrize("key", [sync_key, async_key, partial(async_key), AsyncObject(), hands_on])
def test_an_async_gate_accepts_sync_and_async_keys(key: Any) -> None:
    verdict = tasks(key=key, plain_keys=True)
    assert verdict is not None
    ((charge,), _) = (verdict.charges, verdict.decisions)
    assert charge.key.endswith("=/path}:default")


@pytest.mark.promise(9)
@pytest.mark.parametrize("missing_key", ["shared", "deny", "exempt"])
def test_an_async_key_that_raises_bypasses_no_limit(missing_key: Any, caplog: pytest.LogCaptureFixture) -> None:
    verdict = tasks(key=async_raises, missing_key=missing_key, plain_keys=True)
    assert verdict is not None
    if missing_key == "deny":
        assert not verdict.allowed
    else:
        assert [charge.key for charge in verdict.charges] == [f"{{missing=call:{__name__}:async_raises}}:default"]
    counts = (
        "an error: a key or tier counts as missing, a cost as 1; in place of limits, the default limits apply, and if "
        "these come from the same callable or are [], the request gets 503"
    )
    assert caplog.messages[0] == f"ratelimit_mw: async_raises: raised {counts}"


class Asked(PlainRequest):
    """A request that records when its user is read."""

    said: ClassVar[list[str]] = []

    @property
    def user(self) -> str | None:
        self.said.append("user")
        return None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"key": "ip"}, 0),
        ({"key": "all"}, 0),
        ({"key": "ip+route"}, 0),
        ({"key": "user | ip"}, 1),
        ({"key": "ip+user"}, 1),
        ({"key": "user+ip | ip"}, 1),
        ({"limits": [{"limit": "5/minute", "key": "user"}], "key": "ip"}, 1),
        ({"limits": {"free": "5/minute"}, "tier": "user", "key": "ip"}, 1),
        ({"exempt": ["/path"]}, 0),
        ({"blocklist": ["192.0.2.1"]}, 0),
    ],
    ids=str,
)
def test_the_user_is_read_only_if_a_key_or_tier_needs_it(settings: dict[str, Any], said: int) -> None:
    """Reading the user may query a database."""
    Asked.said.clear()
    whole = Settings(**{"limits": "5/minute", **settings})
    Gate(whole).admit(Asked("/path"))
    asyncio.run(AsyncGate(whole).admit(Asked("/path")))
    assert len(Asked.said) == 2 * said


def test_an_async_gate_reads_the_user_before_calling_callables() -> None:
    Asked.said.clear()
    settings = Settings(limits="5/minute", rules=[{"path": "/path", "limits": "9/minute", "cost": _said_cost}])
    asyncio.run(AsyncGate(settings).admit(Asked("/path")))
    assert Asked.said[:2] == ["user", "cost"]


def _said_cost(_: Request) -> int:
    Asked.said.append("cost")
    return 1


@BOTH
def test_a_callable_shared_by_limits_is_called_once_per_request(admit: Admit) -> None:
    asked: list[str] = []

    def key(request: Request) -> str:
        asked.append(request.path)
        return "k"

    verdict = admit(limits=["5/minute", {"limit": "9/hour", "key": key}], app_limits="1/second", key=key)
    assert (len(verdict.decisions), asked) == (3, ["/path"])


@BOTH
@pytest.mark.promise(1)
def test_one_store_call_charges_all_limits(admit: Admit) -> None:
    store = RecordingStore(clock=Clock())
    limits = ["5/minute", {"limit": "9/hour", "key": "route"}, {"limit": "9/day", "key": "all"}]
    verdict = admit(store=store, limits=limits, app_limits="100/second")
    assert [(verb, len(charges)) for verb, charges in store.calls] == [("take", 4)]
    assert len(verdict.decisions) == 4


@pytest.mark.parametrize(("gate", "needs"), [(Gate, "take()"), (AsyncGate, "atake()")])
@pytest.mark.parametrize("store", [7, object(), []])
def test_an_invalid_store_raises_a_config_error(gate: Any, needs: str, store: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        gate(Settings(limits="1/minute", store=store))
    assert str(caught.value).startswith(f"store: got {type(store).__name__}, expected a URL or a")
    assert needs in str(caught.value)


ONCE: list[tuple[dict[str, Any], list[str]]] = [
    ({"limits": "9/minute", "store_timeout": 50.0}, ["store_timeout"]),
    ({"limits": "9/minute", "exempt": "/{rest:path}"}, ["exempt"]),
    ({"limits": "9/minute", "metrics_folder": "/run/x"}, ["metrics_folder has no effect without metrics; set metrics"]),
    ({"limits": {"free": "9/minute"}, "tier": "user", "default_tier": "free"}, []),
]


@pytest.mark.parametrize("kind", [Gate, AsyncGate])
@pytest.mark.parametrize(("settings", "begins"), ONCE, ids=lambda value: str(value)[:40])
def test_a_gate_for_endpoints_repeats_no_warning(
    kind: Any, settings: dict[str, Any], begins: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A gate for endpoints has no rules, but does not report the options that only rules use."""
    gate = kind(Settings(**settings))
    assert gate.nested.nested_with(MemoryStore()) is not None
    told = [text.removeprefix("ratelimit_mw: ") for text in caplog.messages]
    assert [text[: len(begin)] for text, begin in zip(told, begins, strict=True)] == begins


def test_a_gate_for_endpoints_repeats_no_warning_about_a_cluster(caplog: pytest.LogCaptureFixture) -> None:
    class Cluster(MemoryStore):
        is_cluster = True

    assert Gate(Settings(limits="9/minute", store=Cluster())).nested is not None
    assert [text.partition(":")[2][:30] for text in caplog.messages] == [" store: in a cluster without k"]
