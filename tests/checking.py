"""Runs `python -m ratelimit_mw` for tests, and provides a module of callables for their settings."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import ratelimit_mw
from ratelimit_mw.cli import main

Check = Callable[..., str]

MODULE = """
asked = []

def tenant(request):
    return request.headers.get("x-tenant")

async def plan(request):
    return "pro"

def raises(request):
    raise ValueError("no\\nplan")

def staff(request):
    return request.user == "root"

def open_now(request):
    return True

def cost(request):
    return 3

def true_cost(request, response):
    return 4

def none(request):
    return None

def wsgi_app(environ, start_response):
    return []

def plain(request, verdict):
    return 429, {}, ""

def one(request):
    return 429
"""


def python(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python with the tested package, without environment variables that configure this package or web servers."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RATELIMIT_MW_", "WEB_"))}
    kept["PYTHONPATH"] = str(Path(ratelimit_mw.__file__).parent.parent)
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=folder,
        env=kept,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def command(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command as an operator does."""
    return python("-m", "ratelimit_mw", *arguments, folder=folder)


def check_in(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Check:
    """Return a function that runs `check` on settings in this process, and returns the output. `code`: the expected
    exit code.
    """
    (folder / "shop_of_check.py").write_text(MODULE, "utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "shop_of_check", raising=False)
    monkeypatch.setattr("ratelimit_mw.core.log._quiet_until", {})
    for name in os.environ:
        if name.startswith(("RATELIMIT_MW_", "WEB_")):
            monkeypatch.delenv(name)

    def checked(settings: str, *arguments: str, code: int = 0) -> str:
        (folder / "limits.toml").write_text(settings, "utf-8")
        assert main(["check", "limits.toml", *arguments]) == code
        return capsys.readouterr().out

    return checked
