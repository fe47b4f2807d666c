"""Redis servers and clusters for the tests that need them."""

import gc
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Generic, TypeVar

import pytest

from message_codes import with_codes, without_codes  # noqa: F401  # fixtures
from profiles import PROOF
from ratelimit_mw.metrics.recording import STORE_CALLS
from ratelimit_mw.metrics.registry import COUNTS, Registry
from redis_cluster import RedisCluster
from redis_servers import RedisServer, RedisServerError, find_binaries

# helpers that assert; before any of them is imported, so that a failure shows both values
pytest.register_assert_rewrite(
    "algorithms.adversary",
    "attacks.attack",
    "checking",
    "faults",
    "proxies.programs",
    "regular",
    "stores.processes",
    "waiting.queue_world",
    "web.in_process",
    "web.message_order",
    "web.scenarios_settlements",
    "web.table",
)

# slow tests, those with Chromium or other clients, those of tools: tox environments of their own run them
collect_ignore = ["browser", "guides", "soak", "tools", "tutorials"]

_CACHE = Path(__file__).resolve().parents[1] / ".tox" / "redis"
_EVERY_REDIS = PROOF or os.environ.get("TEST_FAULTS") == "all"
_NONE_AT_ALL = "no redis-server to test against; type: sudo apt-get install redis-server (macOS: brew install redis)"

_BINARIES = pytest.StashKey[dict[str, Path]]()
_PROBLEMS = pytest.StashKey[list[str]]()


R = TypeVar("R", RedisServer, RedisCluster)


class Running(Mapping[str, R], Generic[R]):
    """The running server or cluster of each binary, by name. Each is started at its first access."""

    def __init__(self, binaries: Mapping[str, Path], start: Callable[[Path], R]) -> None:
        self._binaries = binaries
        self._start: Callable[[Path], R] = start
        self._running: dict[str, R] = {}

    def __getitem__(self, name: str) -> R:
        if name not in self._running:
            self._running[name] = self._start(self._binaries[name])
        return self._running[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._binaries)

    def __len__(self) -> int:
        return len(self._binaries)

    def discard(self, name: str) -> None:
        """Stop the server or cluster of this name. The next access starts a new one."""
        self._running.pop(name).stop()

    def stop(self) -> None:
        """Stop all servers or clusters that were started."""
        while self._running:
            self._running.popitem()[1].stop()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Find the binaries before the header shows them."""
    problems: list[str] = []
    try:
        binaries = find_binaries(_CACHE, problems.append)
    except RedisServerError as error:  # a specified binary cannot be used
        pytest.exit(str(error), returncode=1)
    if os.environ.get("TEST_REDIS") == "one":  # to save time: another environment tests the others
        binaries, left = dict(list(binaries.items())[:1]), list(binaries)[1:]
        problems += [f"{name}, as TEST_REDIS says" for name in left]
    session.config.stash[_BINARIES], session.config.stash[_PROBLEMS] = binaries, problems


def pytest_collection_finish() -> None:
    """Leave what tests imported out of each later garbage collection, which would take a fifth of a second."""
    gc.collect()
    gc.freeze()


def pytest_report_header(config: pytest.Config) -> list[str]:
    """One line per Redis, and one per Redis that is missing."""
    binaries = config.stash[_BINARIES]
    used = [f"redis: {name} ({program})" for name, program in binaries.items()]
    return used + [f"WARNING: not tested against: {problem}" for problem in config.stash[_PROBLEMS]]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Repeat the missing binaries at the end, because `-q` hides the header."""
    for problem in config.stash.get(_PROBLEMS, []):
        terminalreporter.write_line(f"WARNING: not tested against: {problem}", yellow=True)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that uses a Redis once per binary, with the version as the id.

    Tests marked `one_redis` run only with the first binary, except in the proof and in all of the matrix of faults.
    """
    binaries = metafunc.config.stash[_BINARIES]
    names = list(binaries) or ["none"]  # not empty, because pytest would skip the test
    if metafunc.definition.get_closest_marker("one_redis") and not _EVERY_REDIS:
        names = names[:1]
    for fixture in ("redis_server", "redis_cluster"):
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, names, indirect=True)


def _binaries(config: pytest.Config) -> dict[str, Path]:
    """Return all binaries by name. A machine without any is an error of the tests that use one, never a skip."""
    binaries = config.stash[_BINARIES]
    if not binaries:
        pytest.fail(_NONE_AT_ALL, pytrace=False)
    return binaries


@pytest.fixture(scope="session")
def redis_servers(pytestconfig: pytest.Config) -> Iterator[Mapping[str, RedisServer]]:
    """All servers by name, for tests that need several at once. They are shared: other tests may have left data in
    them.
    """
    servers = Running(_binaries(pytestconfig), RedisServer)
    yield servers
    servers.stop()


@pytest.fixture
def redis_server(request: pytest.FixtureRequest, redis_servers: Mapping[str, RedisServer]) -> RedisServer:
    """A running server without data, scripts and clients of earlier tests, for each version in turn.

    A test may pause or kill it. A test that changes its configuration starts its own RedisServer.
    """
    server = redis_servers[request.param]
    server.resume()
    if server.process.poll() is not None:
        server.restart()
    server.disconnect()  # otherwise leftovers of earlier tests are closed when collected, maybe during this test
    server.flush()
    return server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """The URL of database 0 of `redis_server`."""
    return redis_server.url


@pytest.fixture(scope="session")
def redis_clusters(pytestconfig: pytest.Config) -> Iterator[Running[RedisCluster]]:
    """All clusters by name; tests take `redis_cluster`."""
    clusters = Running(_binaries(pytestconfig), RedisCluster)
    yield clusters
    clusters.stop()


@pytest.fixture
def redis_cluster(request: pytest.FixtureRequest, redis_clusters: Running[RedisCluster]) -> RedisCluster:
    """A running cluster without data and scripts, for each version in turn.

    A test may pause or kill its nodes and move its slots. After a kill, the next test waits two seconds for a new
    cluster. A test that changes its configuration starts its own RedisCluster.
    """
    cluster = redis_clusters[request.param]
    try:
        cluster.reset()
    except (RedisServerError, OSError):
        redis_clusters.discard(request.param)
    return redis_clusters[request.param]


@pytest.fixture
def counts() -> Iterator[Registry]:
    """The metrics registry of this process, which has no counts and no folder before and after the test."""
    yield COUNTS.forget()
    COUNTS.forget()
    STORE_CALLS.enabled = False
    STORE_CALLS.listeners.clear()
