"""Counts of a process and of a folder of count files, and their output in a scrape."""

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from ratelimit_mw import ConfigError
from ratelimit_mw.core import log
from ratelimit_mw.engine.gate import Gate
from ratelimit_mw.metrics import PrometheusCollector, folder
from ratelimit_mw.metrics.families import (
    DELAY_SECONDS,
    FAMILIES,
    POLICY_INFO,
    REFUSALS,
    REQUESTS,
    STORE_ERRORS,
    WAITING,
    Series,
)
from ratelimit_mw.metrics.folder import CountFile, fold, prepare, read_folder
from ratelimit_mw.metrics.recording import STORE_CALLS
from ratelimit_mw.metrics.registry import MAX_SERIES, Registry
from ratelimit_mw.settings import Settings

ADMITTED = ("login", "admitted", "store")
NO_PROMTOOL = "no promtool to check with; type: sudo apt-get install prometheus (macOS: brew install prometheus)"


def samples(*, of: str = "ratelimit_", collector: Any = None) -> dict[str, float]:
    """Return the samples of a scrape whose names start with `of`."""
    shown = CollectorRegistry()
    shown.register(collector or PrometheusCollector())
    lines = generate_latest(shown).decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines) if name.startswith(of)}


def in_child(work: Callable[[], object]) -> int:
    """Fork a child that calls `work`, and return its exit code."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001  # the child must not return into pytest
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_scrape_shows_counts_with_their_labels(counts: Registry) -> None:
    counts.add(REQUESTS, ADMITTED, 3)
    counts.add(REFUSALS, ("login", "login-2", "true"))
    counts.add(DELAY_SECONDS, ("login",), 1_500_000)
    counts.set_policy(("abc", "off"))
    counts.set_policy(("abc", "off"))
    assert samples() == {
        'ratelimit_requests_total{outcome="admitted",rule="login",source="store"}': 3.0,
        'ratelimit_refusals_total{limit="login-2",rule="login",shadow="true"}': 1.0,
        'ratelimit_delay_seconds_total{rule="login"}': 1.5,
        "ratelimit_store_keys": 0.0,
        'ratelimit_policy_info{digest="abc",reload="off"}': 1.0,
    }


def test_scrape_shows_store_calls_as_a_histogram_and_errors_by_kind(counts: Registry) -> None:
    for seconds in (0.0001, 0.0002, 3.0):
        STORE_CALLS.record("take", seconds)
    for error in (TimeoutError(), ConnectionError("connection refused"), ValueError("what is that")):
        STORE_CALLS.record("settle", 1.0, error)
    found = samples(of="ratelimit_store_seconds")
    assert found['ratelimit_store_seconds_bucket{call="take",le="0.0001"}'] == 1
    assert found['ratelimit_store_seconds_bucket{call="take",le="0.00025"}'] == 2
    assert found['ratelimit_store_seconds_bucket{call="take",le="1"}'] == 2
    assert found['ratelimit_store_seconds_bucket{call="take",le="+Inf"}'] == 3
    assert found['ratelimit_store_seconds_count{call="take"}'] == 3
    assert found['ratelimit_store_seconds_sum{call="take"}'] == 3.0003
    assert samples(of="ratelimit_store_errors") == {
        f'ratelimit_store_errors_total{{call="settle",kind="{kind}"}}': 1.0
        for kind in ("timeout", "connection", "reply")
    }
    assert counts.own_counts()[STORE_ERRORS.name, ("settle", "reply")] == 1


def test_prometheus_registry_rejects_a_second_collector() -> None:
    shown = CollectorRegistry()
    shown.register(PrometheusCollector())
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        shown.register(PrometheusCollector())


def test_collector_without_its_library_names_the_package_to_install() -> None:
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from ratelimit_mw.metrics import PrometheusCollector\nPrometheusCollector()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: this part of ratelimit_mw needs prometheus_client: pip install 'ratelimit-mw[prometheus]'"
    )


def test_rules_over_the_series_limit_count_as_other(counts: Registry, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(5000):
        counts.add(REQUESTS, (f"rule-{number}", "admitted", "store"))
        counts.add(REFUSALS, (f"rule-{number}", f"rule-{number}", "false"))
    counts.add(WAITING, ("new",))
    counts.set_policy(("digest", "off"))
    for number in range(50):
        counts.set_policy((f"digest-{number}", "off"))
    STORE_CALLS.record("take", 0.1)
    STORE_CALLS.record("settle", 0.1)
    shown = samples()
    assert len(shown) <= MAX_SERIES
    of_requests = [count for name, count in shown.items() if name.startswith("ratelimit_requests_total")]
    assert sum(of_requests) == 5000
    of_refusals = [count for name, count in shown.items() if name.startswith("ratelimit_refusals_total")]
    assert sum(of_refusals) == 5000
    assert shown['ratelimit_waiting_requests{rule="other"}'] == 1
    assert len([name for name in shown if name.startswith(POLICY_INFO.name)]) == 10
    assert shown['ratelimit_store_seconds_count{call="settle"}'] == 1
    record = caplog.records[0]  # the scrape adds one: no limiter counts
    most = "1000 series are the most that a process counts; further rules and limits count as 'other'"
    assert record.getMessage() == f"ratelimit_mw: metrics: {most}"


def test_store_error_series_over_the_limit_are_dropped(counts: Registry) -> None:
    for number in range(2000):
        counts.add(STORE_ERRORS, ("take", f"kind-{number}"))
    assert len(samples()) <= MAX_SERIES + 1  # plus `ratelimit_store_keys`


@pytest.mark.parametrize("shared", [False, True])
def test_concurrent_threads_lose_no_counts(counts: Registry, tmp_path: Path, *, shared: bool) -> None:
    counts.open(str(tmp_path) if shared else None)
    index = counts.cell(REQUESTS, ADMITTED)
    before = sys.getswitchinterval()

    def count() -> None:
        for _ in range(20_000):
            counts.cells[index] += 1

    threads = [threading.Thread(target=count) for _ in range(8)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert counts.own_counts()[REQUESTS.name, ADMITTED] == 160_000


def test_settings_that_are_replaced_are_no_longer_shown(counts: Registry, tmp_path: Path) -> None:
    """Any number of reloads takes one series for each gate."""
    counts.open(str(tmp_path / "counts"))

    def shown() -> dict[str, float]:
        return {name: count for name, count in samples().items() if name.startswith(POLICY_INFO.name)}

    def info(digest: str, reload: str = "ok") -> str:
        return f'ratelimit_policy_info{{digest="{digest}",reload="{reload}"}}'

    counts.set_policy(("0", "ok"))
    counts.set_policy(("0", "ok"))  # another gate with the same settings
    for number in range(50):
        counts.set_policy((f"{number + 1}", "ok"), (f"{number}", "ok"))
        assert shown() == {info("0"): 1.0, info(f"{number + 1}"): 1.0}
    counts.set_policy(("50", "failed"), ("50", "ok"))
    assert shown() == {info("0"): 1.0, info("50", "failed"): 1.0}
    counts.set_policy(("50", "failed"), ("0", "ok"))
    assert shown() == {info("50", "failed"): 1.0}


def test_forked_child_starts_its_counts_at_zero(counts: Registry) -> None:
    counts.add(REQUESTS, ADMITTED, 5)
    counts.set_policy(("abc", "off"))

    def work() -> None:
        assert counts.own_counts()[REQUESTS.name, ADMITTED] == 0
        assert counts.own_counts()[POLICY_INFO.name, ("abc", "off")] == 1
        counts.add(REQUESTS, ADMITTED)
        assert counts.own_counts()[REQUESTS.name, ADMITTED] == 1

    assert in_child(work) == 0
    assert counts.own_counts()[REQUESTS.name, ADMITTED] == 5


def test_counts_of_parent_and_children_are_added_up(counts: Registry, tmp_path: Path) -> None:
    counts.add(REQUESTS, ADMITTED)
    counts.open(str(tmp_path))  # keeps earlier counts
    counts.add(REQUESTS, ADMITTED)

    def work() -> None:
        counts.add(REQUESTS, ADMITTED, 10)
        counts.add(WAITING, ("login",))
        assert in_child(lambda: counts.add(REQUESTS, ADMITTED, 100)) == 0
        assert counts.counts()[REQUESTS.name, ADMITTED] == 112  # counts of the parent, this process and its dead child
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(work) == -signal.SIGKILL
    for _ in range(3):
        assert counts.counts()[REQUESTS.name, ADMITTED] == 112
        assert counts.counts().get((WAITING.name, ("login",)), 0) == 0  # no request waits in a dead process
    assert len(list(tmp_path.glob("*.counts"))) == 1


def test_exit_of_a_child_does_not_unlock_the_count_file_of_its_parent(counts: Registry, tmp_path: Path) -> None:
    """Parent and child share the open file and its lock. The child must close the file, but not unlock it."""
    counts.open(str(tmp_path))
    counts.add(REQUESTS, ADMITTED)
    assert in_child(lambda: None) == 0
    fold(tmp_path)
    counts.add(REQUESTS, ADMITTED)
    assert counts.counts()[REQUESTS.name, ADMITTED] == 2


def test_count_file_of_an_ended_parent_is_folded_while_its_child_runs(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\nfrom ratelimit_mw.metrics.registry import COUNTS\n"
        "from ratelimit_mw.metrics.families import REQUESTS\n"
        f"COUNTS.open({str(tmp_path)!r}); COUNTS.add(REQUESTS, ('a', 'admitted', 'store'))\n"
        "if os.fork(): os._exit(0)\n"
        "COUNTS.add(REQUESTS, ('a', 'admitted', 'store')); print('counted', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"counted\n"
        process.wait()
        assert read_folder(tmp_path)[0] == {(REQUESTS.name, ("a", "admitted", "store")): 2}
        assert len(list(tmp_path.glob("*.counts"))) == 1  # the file of the child
        assert process.stdin is not None
        process.stdin.close()


class _Crash(BaseException):
    """Raised where the process crashes."""


def dead_file(where: Path, count: int) -> None:
    """Write the count file of a process that has ended."""
    cells = [0] * folder.CAPACITY
    cells[2] = count
    CountFile(where, cells, {(REQUESTS.name, ADMITTED): 2}).abandon()


@pytest.mark.parametrize("step", ["_replace", "unlink first", "unlink second"])
def test_crash_during_folding_counts_nothing_twice(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(tmp_path)
    dead_file(tmp_path, 3)
    dead_file(tmp_path, 4)
    unlinked: list[Path] = []
    unlink = Path.unlink

    def crash(*_: object) -> NoReturn:
        raise _Crash

    def crashing_unlink(path: Path, *, missing_ok: bool = False) -> None:
        unlinked.append(path)
        if len(unlinked) == (1 if step == "unlink first" else 2):
            raise _Crash
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as patch:
        if step == "_replace":
            patch.setattr(folder, "_replace", crash)
        else:
            patch.setattr(Path, "unlink", crashing_unlink)
        with pytest.raises(_Crash):
            fold(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(folder, "fold", lambda _: None)  # as if another process were about to fold
        assert read_folder(tmp_path)[0] == {(REQUESTS.name, ADMITTED): 7}
    for _ in range(3):
        assert read_folder(tmp_path)[0] == {(REQUESTS.name, ADMITTED): 7}
        dead_file(tmp_path, 0)  # gives the next round a file to fold
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *sorted(path.name for path in tmp_path.glob("*.counts")),
        "folded.json",
        "folding.lock",
    ]


def test_reader_reads_again_if_another_process_folds_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(tmp_path)
    dead_file(tmp_path, 5)
    read = folder._read
    folds: list[Path] = []

    def read_late(path: Path) -> dict[Series, int]:
        if not folds:  # another process folds between the listing of the folder and the reading of this file
            folds.append(path)
            monkeypatch.setattr(folder, "fold", fold)
            fold(path.parent)
        return read(path)

    monkeypatch.setattr(folder, "fold", lambda _: None)
    monkeypatch.setattr(folder, "_read", read_late)
    assert read_folder(tmp_path)[0] == {(REQUESTS.name, ADMITTED): 5}


def test_number_of_folded_series_is_bounded(tmp_path: Path) -> None:
    prepare(tmp_path)
    for start in (0, 800):
        series: dict[Series, int] = {
            (REQUESTS.name, (f"rule-{n}", "admitted", "store")): n - start + 2 for n in range(start, start + 800)
        }
        CountFile(tmp_path, [1] * folder.CAPACITY, series).abandon()
    found = read_folder(tmp_path)[0]
    assert sum(found.values()) == 1600
    assert len(found) == 901
    assert found[REQUESTS.name, ("other", "admitted", "store")] == 700


def test_foreign_and_torn_files_in_the_folder_are_ignored(tmp_path: Path) -> None:
    prepare(tmp_path)
    dead_file(tmp_path, 2)
    (tmp_path / "foreign.counts").write_bytes(b"x" * 10_000)
    (tmp_path / "short.counts").write_bytes(b"x")
    torn = next(path for path in tmp_path.glob("*-*.counts"))
    with torn.open("ab") as file:
        file.write(b'\n[3, "ratelimit_req')
    assert read_folder(tmp_path)[0] == {(REQUESTS.name, ADMITTED): 2}
    (tmp_path / "folded.json").write_bytes(b"{")
    assert read_folder(tmp_path)[0] == {}


def test_only_old_unfinished_count_files_are_deleted(tmp_path: Path) -> None:
    prepare(tmp_path)
    new, old = tmp_path / "1-a.new", tmp_path / "1-b.new"
    new.write_bytes(b"")
    old.write_bytes(b"")
    os.utime(old, (0, 0))
    fold(tmp_path)
    assert (new.exists(), old.exists()) == (True, False)


def test_process_keeps_its_counts_if_its_file_is_deleted(counts: Registry, tmp_path: Path) -> None:
    counts.open(str(tmp_path))
    counts.add(REQUESTS, ADMITTED, 2)
    for path in tmp_path.glob("*.counts"):
        path.unlink()
    assert counts.counts()[REQUESTS.name, ADMITTED] == 2


@pytest.fixture(autouse=True)
def unthrottled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test logs its own warnings."""
    monkeypatch.setattr(log, "_quiet_until", {})


class Disk:
    """A disk that can be full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full, self._write = False, os.write
        monkeypatch.setattr(os, "write", self.write)

    def write(self, descriptor: int, data: bytes) -> int:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._write(descriptor, data)


def test_fork_works_while_the_disk_is_full(
    counts: Registry, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts.open(str(tmp_path))
    disk = Disk(monkeypatch)
    disk.is_full = True

    def work() -> None:
        assert "metrics_folder: cannot be written" in caplog.text
        assert os.strerror(errno.ENOSPC) in caplog.text
        counts.add(REQUESTS, ADMITTED)
        assert counts.own_counts()[REQUESTS.name, ADMITTED] == 1
        assert list(tmp_path.glob("*.new")) == []
        disk.is_full = False
        counts._update_due = 0.0
        counts.count_admitted("login")
        assert read_folder(tmp_path)[0][REQUESTS.name, ADMITTED] == 2

    assert in_child(work) == 0


def test_names_are_written_once_there_is_room(
    counts: Registry, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts.open(str(tmp_path))
    disk = Disk(monkeypatch)
    disk.is_full = True
    for number in range(200):
        counts.count_admitted(f"rule {number}")
    assert caplog.text.count("metrics_folder: cannot be written") == 1
    assert not any(name == REQUESTS.name for name, _ in read_folder(tmp_path)[0])
    disk.is_full = False
    counts._update_due = 0.0
    counts.count_admitted("rule 0")
    found = read_folder(tmp_path)[0]
    assert [found[REQUESTS.name, (f"rule {number}", "admitted", "store")] for number in range(200)] == [2, *[1] * 199]


@pytest.mark.parametrize("removed", ["file", "folder"])
def test_removed_file_is_made_again_with_all_counts(
    counts: Registry, tmp_path: Path, caplog: pytest.LogCaptureFixture, removed: str
) -> None:
    own = tmp_path / "own"
    counts.open(str(own))
    counts.count_admitted("login")
    if removed == "folder":
        shutil.rmtree(own)
    else:
        for path in own.glob("*.counts"):
            path.unlink()
    counts.count_admitted("login")  # the file is checked once a second
    counts._update_due = 0.0
    counts.count_admitted("login")
    assert read_folder(own)[0][REQUESTS.name, ADMITTED] == 3
    assert "was removed, and is made again; counts of processes that have ended are lost" in caplog.text
    counts._update_due = 0.0
    counts.count_admitted("login")
    assert (read_folder(own)[0][REQUESTS.name, ADMITTED], caplog.text.count("was removed")) == (4, 1)


class TestFolder:
    """Tests the folders that can be used, and the messages for other folders."""

    def test_folder_is_created(self, tmp_path: Path) -> None:
        prepare(tmp_path / "a" / "b")
        assert (tmp_path / "a" / "b" / "folding.lock").exists()

    def test_file_in_place_of_the_folder_raises_a_config_error(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_text("")
        with pytest.raises(ConfigError) as error:
            prepare(tmp_path / "a")
        assert str(error.value) == (
            f"metrics_folder: got {str(tmp_path / 'a')!r}, which cannot be used: File exists; choose a folder on a "
            "disk of this host, such as one in /run or /tmp"
        )

    @pytest.mark.parametrize("name", ["", "folding.lock"], ids=["the folder", "a file in it"])
    def test_folder_of_another_owner_raises_a_config_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        prepare(tmp_path)
        opens = os.open

        def only_for_their_owner(path: Path, *rest: int) -> int:
            if not name or path.name == name:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return opens(path, *rest)

        monkeypatch.setattr(os, "open", only_for_their_owner)
        with pytest.raises(ConfigError) as error:
            prepare(tmp_path)
        assert str(error.value) == (
            f"metrics_folder: got {str(tmp_path)!r}, which cannot be used: Permission denied; check the owner and the "
            f"permissions of {tmp_path / name}"
        )

    def test_ineffective_file_locks_raise_a_config_error(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fcntl, "flock", lambda *_: None)
        with pytest.raises(ConfigError, match="where file locks have no effect, as on network disks; choose a folder"):
            prepare(tmp_path)
        assert list(tmp_path.iterdir()) == []

    def test_missing_file_locks_raise_a_config_error(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def flock(*_: object) -> NoReturn:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        monkeypatch.setattr(fcntl, "flock", flock)
        with pytest.raises(ConfigError, match="which cannot be used: No locks available; choose a folder"):
            prepare(tmp_path)

    def test_second_folder_in_a_process_raises_a_config_error(self, counts: Registry, tmp_path: Path) -> None:
        counts.open(str(tmp_path / "a"))
        counts.open(str(tmp_path / "a"))
        with pytest.raises(ConfigError, match=r"metrics_folder: got .*b', but this process keeps its counts in .*a' "):
            counts.open(str(tmp_path / "b"))

    def test_folder_defaults_to_a_subfolder_of_prometheus_multiproc_dir(
        self, counts: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
        counts.open(None)
        assert counts.folder == tmp_path / "ratelimit_mw"
        counts.add(REQUESTS, ADMITTED)
        shown = CollectorRegistry()
        MultiProcessCollector(shown)  # type: ignore[no-untyped-call]  # of prometheus_client
        shown.register(PrometheusCollector())
        assert b'ratelimit_requests_total{outcome="admitted",rule="login",source="store"} 1.0' in generate_latest(shown)

    def test_metrics_only_process_shows_the_counts_of_other_processes(
        self, counts: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        own = tmp_path / "ratelimit_mw"
        prepare(own)
        dead_file(own, 6)
        name = 'ratelimit_requests_total{outcome="admitted",rule="login",source="store"}'
        assert samples(collector=PrometheusCollector(own)) == {name: 6.0}
        monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
        assert samples() == {name: 6.0}
        assert samples(collector=PrometheusCollector(tmp_path / "none")) == {}
        assert counts.folder is None


def test_scrape_that_cannot_have_counts_logs_a_warning(
    counts: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(STORE_CALLS, "enabled", False)
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    none = tmp_path / "none"
    for _ in range(2):
        samples()
        samples(collector=PrometheusCollector(none))
    assert caplog.messages == [
        (
            "ratelimit_mw: metrics: are scraped, but no limiter of this process has metrics = true, so there are no "
            "counts; set it"
        ),
        (
            f"ratelimit_mw: metrics folder {none}: is scraped, but does not exist, so there are no counts; give "
            "PrometheusCollector the metrics_folder of an app"
        ),
    ]
    caplog.clear()
    none.mkdir()
    samples(collector=PrometheusCollector(none))
    Gate(Settings(limits="5/minute", metrics=True))
    samples()
    assert caplog.messages == []
    assert counts.folder is None


@pytest.fixture(scope="module")
def promtool() -> str:
    """Return the path of promtool, which checks metrics. The Debian package of Prometheus contains it."""
    found = shutil.which("promtool")
    if found is None:
        pytest.skip(NO_PROMTOOL)
    return found


def test_promtool_reports_no_problems(promtool: str, counts: Registry) -> None:
    for family in FAMILIES:
        if family.kind != "histogram":
            counts.add(family, tuple(f"a-{label}" for label in family.labels))
    STORE_CALLS.record("take", 0.1)
    shown = CollectorRegistry()
    shown.register(PrometheusCollector())
    done = subprocess.run(
        [promtool, "check", "metrics"], input=generate_latest(shown), capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


EXAMPLES = Path(__file__).resolve().parent.parent / "examples" / "grafana"


def test_promtool_accepts_the_alerts(promtool: str) -> None:
    done = subprocess.run(
        [promtool, "check", "rules", str(EXAMPLES / "alerts.yml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_dashboard_and_alerts_use_existing_metrics() -> None:
    known = {family.name for family in FAMILIES} | {f"ratelimit_store_seconds_{part}" for part in ("bucket", "count")}
    board = json.loads((EXAMPLES / "dashboard.json").read_text("utf-8"))
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    assert len(queries) >= 8
    for text in [*queries, (EXAMPLES / "alerts.yml").read_text("utf-8")]:
        assert names_in(text) <= known, text
    used = set().union(*map(names_in, queries))
    assert {family.name for family in FAMILIES} <= {
        name.removesuffix("_bucket").removesuffix("_count") for name in used
    }


def names_in(text: str) -> set[str]:
    """Return the names of this package's metrics that a text contains."""
    words = "".join(char if char.isalnum() or char == "_" else " " for char in text).split()
    return {word for word in words if word.startswith("ratelimit_") and word != "ratelimit_mw"}
