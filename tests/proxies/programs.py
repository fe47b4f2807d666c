"""Runs real proxies as subprocesses, each with the configuration that its page in the docs prints."""

import contextlib
import functools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from redis_servers import free_port

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs/how-to"
FENCE = re.compile(r"^```([a-z]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
READY_WITHIN = 120.0  # seconds
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"  # Debian's folders, not on every PATH
_ALL = os.environ.get("TEST_PROXIES") == "all"
_PATIENT = {"250ms": "60s", "timeout = 250": "timeout = 60000", "0.25s": "60s"}


class Kind(NamedTuple):
    """A proxy: its program, its page, the languages of its files there, and the index of the block that is used."""

    program: str
    page: str
    languages: tuple[str, ...]
    block: int = 0


KINDS = {
    "nginx": Kind("nginx", "behind-nginx.md", ("nginx",)),
    "caddy": Kind("caddy", "behind-caddy.md", ("caddyfile",)),
    "haproxy": Kind("haproxy", "behind-haproxy.md", ("haproxy", "lua")),
    "envoy": Kind("envoy", "behind-envoy.md", ("yaml",)),
    "envoy-grpc": Kind("envoy", "behind-envoy.md", ("yaml",), 1),
}


def found(kind: str) -> str | None:
    """Return the program of a proxy, or None if it is not installed. TEST_ENVOY may name Envoy's.

    To save time, nginx stands for all proxies unless TEST_PROXIES is "all".
    """
    program = KINDS[kind].program
    if program != "nginx" and not _ALL:
        return None
    if program == "envoy":
        beside = Path(sys.executable).with_name("envoy")
        return os.environ.get("TEST_ENVOY") or (str(beside) if beside.exists() else shutil.which("envoy", path=_PATH))
    return shutil.which(program, path=_PATH)


def missing(kind: str) -> str:
    """Return a message that says how to install a missing proxy."""
    program = KINDS[kind].program
    if program == "envoy" or not (program == "nginx" or _ALL):
        return f"no {program} here; type: python3 -m tox -e proxies"
    return f"no {program}; type: sudo apt-get install {program}"


def printed(kind: str) -> dict[str, str]:
    """Return the files of a proxy as its page prints them, by language."""
    one = KINDS[kind]
    blocks = FENCE.findall((PAGES / one.page).read_text("utf-8"))
    return {language: [text for name, text in blocks if name == language][one.block] for language in one.languages}


def configuration(kind: str, ports: Mapping[str, int], *, patient: bool) -> dict[str, str]:
    """Return these files with other ports. `patient`: with a timeout of a minute for the service, for busy machines."""
    files = {}
    for language, block in printed(kind).items():
        replaced = {
            "127.0.0.1:8900": f"127.0.0.1:{ports['service']}",
            "127.0.0.1:8000": f"127.0.0.1:{ports['app']}",
            "port_value: 8900": f"port_value: {ports['service']}",
            "port_value: 8901": f"port_value: {ports.get('grpc', 0)}",
            "port_value: 8000": f"port_value: {ports['app']}",
            "listen 80;": f"listen 127.0.0.1:{ports['proxy']};",
            ":80 {": f":{ports['proxy']} {{\n    bind 127.0.0.1",  # for any Host
            "bind :80": f"bind 127.0.0.1:{ports['proxy']}",
            "address: 0.0.0.0, port_value: 80 ": f"address: 127.0.0.1, port_value: {ports['proxy']} ",
            **(_PATIENT if patient else {}),
        }
        files[language] = functools.reduce(lambda text, pair: text.replace(*pair), replaced.items(), block)
    return files


def _command(kind: str, folder: Path, files: Mapping[str, str]) -> list[str]:
    program = str(found(kind))
    if kind == "nginx":
        temporary = "".join(
            f"{name}_temp_path {folder}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        inside = files["nginx"].replace("http {\n", f"http {{\naccess_log off;\n{temporary}", 1)
        head = f"daemon off;\nmaster_process off;\npid {folder}/pid;\nevents {{}}\n"
        (folder / "nginx.conf").write_text(head + inside, "utf-8")
        return [program, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]
    if kind == "caddy":
        text = files["caddyfile"].replace("{\n", "{\n    admin off\n    auto_https off\n", 1)
        (folder / "Caddyfile").write_text(text, "utf-8")
        return [program, "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]
    if kind == "haproxy":
        (folder / "ratelimit.lua").write_text(files["lua"], "utf-8")
        (folder / "haproxy.cfg").write_text(files["haproxy"], "utf-8")
        return [program, "-db", "-f", str(folder / "haproxy.cfg")]
    (folder / "envoy.yaml").write_text(files["yaml"], "utf-8")
    return [program, "-c", str(folder / "envoy.yaml"), "--concurrency", "1", "--disable-hot-restart", "-l", "warning"]


@contextlib.contextmanager
def proxy(
    kind: str,
    folder: Path,
    ports: Mapping[str, int],
    *,
    patient: bool = True,
    change: Callable[[str], str] = lambda text: text,
) -> Iterator[int]:
    """Run a proxy in front of an app and the service, and yield its port. `change`: edits the text of its files."""
    port = free_port()
    printed_files = configuration(kind, {**ports, "proxy": port}, patient=patient)
    with running(kind, folder, {language: change(text) for language, text in printed_files.items()}, port):
        yield port


@contextlib.contextmanager
def running(kind: str, folder: Path, files: Mapping[str, str], port: int) -> Iterator[None]:
    """Run a proxy with these files, which listens on this port."""
    log = folder / "output.txt"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            _command(kind, folder, files),
            cwd=folder,
            env={**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_for_port(port, process, log)
        yield
    finally:
        stop(process)


@contextlib.contextmanager
def served(
    folder: Path, settings: str, *options: str, port: int | None = None
) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Run the decision service with its command, and yield its port and process."""
    (folder / "limits.toml").write_text(settings, "utf-8")
    port = port or free_port()
    log = folder / "service.txt"
    with log.open("ab") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "ratelimit_mw", "serve", "limits.toml", "--bind", f"127.0.0.1:{port}", *options],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_for_port(port, process, log)
        yield port, process
    finally:
        stop(process)


def wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the port accepts a connection."""
    until = time.monotonic() + READY_WITHIN
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return
        assert process.poll() is None, log.read_text(errors="replace")
        assert time.monotonic() < until, f"not ready: {log.read_text(errors='replace')}"
        time.sleep(0.02)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Terminate a process. If it does not end within 10 seconds, kill it and all processes that it started."""
    process.send_signal(signal.SIGCONT)
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
