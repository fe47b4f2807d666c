"""The machine and the versions of a run."""

import os
import platform
import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import ratelimit_mw

_PACKAGES = {
    "ratelimit-mw": "ratelimit-mw",
    "limits": "limits",
    "asgi-ratelimit": "asgi-ratelimit",
    "slowapi": "slowapi",
    "flask-limiter": "flask-limiter",
    "django-ratelimit": "django-ratelimit",
    "fastapi-limiter": "fastapi-limiter",
    "pyrate-limiter": "pyrate-limiter",
    "throttled-py": "throttled-py",
    "litestar": "litestar",
    "starlette": "starlette",
    "fastapi": "fastapi",
    "flask": "flask",
    "django": "django",
    "uvicorn": "uvicorn",
    "uvloop": "uvloop",
    "httptools": "httptools",
    "redis-py": "redis",
    "hiredis": "hiredis",
}


def versions() -> dict[str, str]:
    """Return the versions of Python, of all packages that are measured or used, and of redis-server."""
    found = {"python": f"{platform.python_version()} ({platform.python_implementation()})"}
    found |= {name: _version(distribution) for name, distribution in _PACKAGES.items()}
    here = Path(ratelimit_mw.__file__).is_relative_to(Path(__file__).parents[1])  # it precedes the installed one
    found["ratelimit-mw"] += " (of this checkout)" if here else " (installed)"
    found["redis-server"] = _redis_server()
    return found


def machine() -> dict[str, str]:
    """Return the processor, the number of cores that this process may use, and the system."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"cpu": _cpu(), "cores": str(cores), "system": f"{platform.system()} {platform.release()}"}


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"


def _redis_server() -> str:
    program = shutil.which("redis-server")
    if program is None:
        return "not on PATH"
    shown = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    found = re.search(r"v=(\S+)", shown)
    return found[1] if found else shown.strip()


def _cpu() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()
