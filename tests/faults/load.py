"""Puts an app behind the middleware under load from several clients, while a test breaks and repairs its store."""

import asyncio
import gc
import itertools
import os
import stat
import threading
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, NamedTuple

from ratelimit_mw import asgi, wsgi
from web.asgi_talk import HTTP, Talk

QUOTA: Final = 40  # per hour and address
STORE_TIMEOUT: Final = 0.1  # seconds
SLACK: Final = 3.0  # seconds that a request may take beyond it: enough for a busy machine, far less than a hanging call
BACK_WITHIN: Final = 8.0  # seconds; the time that it took is reported
PATIENCE: Final = 20.0  # seconds to wait for anything
LASTS: Final = 2.0 if os.environ.get("TEST_FAULTS") == "all" else 0.0  # seconds that a store is broken, at least
HOT: Final = "192.0.2.1"  # the client of every other request
_WORKERS: Final = 10
_PAUSE: Final = 0.01  # seconds between two requests of a worker
_TURNS: Final = 6  # requests of each worker until a test goes on


class Seen(NamedTuple):
    """A request with a response. Times are those of `time.monotonic`."""

    worker: int
    begun: float
    ended: float
    client: str
    status: int
    source: str  # the source of the verdict; empty if the app was not called


class Load(AbstractContextManager["Load", None]):
    """Sends requests until the end of the block `with OverAsgi(store=url) as load:`. `held` then checks all guarantees.

    Every other request is from the same client, which soon has used up its quota; the others are from new clients.
    """

    def __init__(self, workers: int = _WORKERS, pause: float = _PAUSE, **settings: Any) -> None:
        self.settings: dict[str, Any] = {
            "limits": f"{QUOTA}/hour",
            "on_store_error": "local",
            "store_timeout": STORE_TIMEOUT,
        }
        self.settings |= settings
        self.workers, self._pause = workers, pause
        self.seen: list[Seen] = []
        self.raised: list[BaseException] = []
        self.left: list[str] = []  # tasks, sockets and threads that still exist after everything is closed
        self._over = threading.Event()
        self._fresh = itertools.count(1)
        self._before = (_sockets(), set(threading.enumerate()))
        self._thread = threading.Thread(target=self._guarded, name="load")
        self._thread.start()

    def end(self) -> None:
        """Stop sending requests, and close the app."""
        self._over.set()
        self._thread.join()

    def __exit__(self, *_: object) -> None:
        self.end()
        gc.collect()
        sockets, threads = self._before
        self.left += [f"{more} sockets" for more in [settled(lambda: max(0, _sockets() - sockets), PATIENCE)] if more]
        self.left += settled(
            lambda: [thread.name for thread in threading.enumerate() if thread not in threads], PATIENCE
        )

    @abstractmethod
    def _work(self) -> None:
        """Send requests to the middleware until the load ends, then close it."""

    def _guarded(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001  # `held` reports it to the test
            self.raised.append(error)

    def _clients(self) -> Iterator[str]:
        """Yield the client of each request of a worker."""
        while not self._over.is_set():
            yield HOT
            number = next(self._fresh)
            yield f"198.{18 + number // 65536}.{number // 256 % 256}.{number % 256}"

    def goes_on(self) -> float:
        """Wait until each worker has begun and finished some requests. Returns the earliest time when one of them can
        have begun.

        A broken store stays broken for that long, so that a hanging call is found.
        """
        since = time.monotonic()
        enough = settled(lambda: self.raised or self._least(since) < _TURNS, PATIENCE)
        assert not enough, f"requests hang: {self.raised or self._least(since)}"
        return since

    def goes_on_without(self, *, felt: bool = True) -> float:
        """Like `goes_on`, while the store is broken. In the full run it lasts until a probe of the store has become
        rare.

        `felt`: check that requests were decided without the store.
        """
        since = time.monotonic()
        begun = self.goes_on()
        while time.monotonic() < since + LASTS:
            self.goes_on()
        assert self._of("local", begun) or not felt, "the fault has no effect"
        return begun

    def _least(self, since: float) -> int:
        turns = Counter(one.worker for one in self.seen.copy() if one.begun >= since)
        return min(turns[worker] for worker in range(self.workers))

    def recovers(self, *, everywhere: bool = False) -> float:
        """Wait until the store decides again, and a while longer. Returns the seconds until its first decision.

        `everywhere`: the seconds until the last decision that was made without the store.
        """
        since = time.monotonic()
        assert not settled(lambda: not self._of("store", since), BACK_WITHIN), "the store is not asked again"
        first = min(one.ended for one in self._of("store", since))
        begun = self.goes_on()
        while everywhere and self._of("local", begun):
            assert begun < since + BACK_WITHIN, "the store is not asked for everybody again"
            begun = self.goes_on()
        return max([one.ended for one in self._of("local", since)] if everywhere else [first], default=since) - since

    def _of(self, source: str, since: float) -> list[Seen]:
        return [one for one in self.seen.copy() if one.begun >= since and one.source == source]

    def admitted(self, source: str, client: str = HOT) -> int:
        """Return how many requests of a client this source admitted."""
        return sum((one.client, one.source) == (client, source) for one in self.seen)

    def held(self, quotas: int = 1) -> None:
        """Check that no guarantee was broken.

        `quotas`: how many times the store may have admitted a whole quota; each loss of its data adds one.
        """
        assert not self.raised
        assert not self.left, self.left
        assert {one.status for one in self.seen} <= {200, 429}
        assert {one.source for one in self.seen} <= {"store", "local", ""}
        assert 1 <= self.admitted("store") <= QUOTA * quotas
        assert self.admitted("local") <= QUOTA
        assert all(one.status == 200 for one in self.seen if one.client != HOT)
        assert max(one.ended - one.begun for one in self.seen) < STORE_TIMEOUT + SLACK


class OverAsgi(Load):
    """Load from the tasks of one event loop."""

    def _work(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        middleware = asgi.RateLimitMiddleware(_asgi_app, **self.settings)
        await asyncio.gather(*(self._ask(middleware, number) for number in range(self.workers)))
        await middleware._gate.close()
        for _ in range(300):
            if len(asyncio.all_tasks()) == 1:
                return
            await asyncio.sleep(0.01)
        self.left += [repr(task) for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    async def _ask(self, middleware: Any, worker: int) -> None:
        for client in self._clients():
            begun = time.monotonic()
            start = (await Talk().with_app(middleware, HTTP, client=(client, 50000))).sent[0]
            source = dict(start["headers"]).get(b"x-source", b"").decode()
            self.seen.append(Seen(worker, begun, time.monotonic(), client, start["status"], source))
            await asyncio.sleep(self._pause)


class OverWsgi(Load):
    """Load from threads."""

    def _work(self) -> None:
        middleware = wsgi.RateLimitMiddleware(_wsgi_app, **self.settings)
        threads = [threading.Thread(target=self._ask, args=(middleware, number)) for number in range(self.workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        middleware.close()

    def _ask(self, middleware: Any, worker: int) -> None:
        try:
            for client in self._clients():
                begun, got = time.monotonic(), list[Any]()
                environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "REMOTE_ADDR": client}
                middleware(environ, lambda *started, got=got: got.append(started))
                ((status, fields),) = got
                source = dict(fields).get("X-Source", "")
                self.seen.append(Seen(worker, begun, time.monotonic(), client, int(status[:3]), source))
                time.sleep(self._pause)
        except BaseException as error:  # noqa: BLE001  # `held` reports it to the test
            self.raised.append(error)


async def _asgi_app(scope: Any, _: Any, send: Any) -> None:
    source = scope["state"]["ratelimit"].verdict.source
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-source", source.encode())]})
    await send({"type": "http.response.body", "body": b""})


def _wsgi_app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    start_response("200 OK", [("X-Source", environ["ratelimit_mw"].verdict.source)])
    return []


def settled(what: Callable[[], Any], within: float = 5.0) -> Any:
    """Call `what` until its result is falsy, or for `within` seconds. Returns the last result."""
    deadline = time.monotonic() + within
    while (found := what()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def _sockets() -> int:
    """Return how many sockets this process has open."""
    count = 0
    for file in Path("/dev/fd").iterdir():
        try:
            count += stat.S_ISSOCK(os.fstat(int(file.name)).st_mode)
        except OSError:
            continue  # the descriptor of this listing, closed by now
    return count
