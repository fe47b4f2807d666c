"""Tests that functions run once in each forked child, whichever hook notices the fork. uWSGI: tests/served."""

import os
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

from ratelimit_mw.core import forks


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the functions that ran."""
    found: list[str] = []
    monkeypatch.setattr(forks, "_functions", [lambda: found.append("ours")])
    monkeypatch.setattr(forks, "_processes", [os.getpid()])
    return found


def module(**names: Any) -> Any:
    made: Any = ModuleType("uwsgi")
    vars(made).update(names)
    return made


def test_functions_run_once_in_each_child(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    uwsgi = module()
    forks._use_hook_of_uwsgi(uwsgi)
    uwsgi.post_fork_hook()  # in the same process: without its master process, uWSGI's first worker is no child
    assert calls == []
    for child in (2_000_001, 2_000_002):
        monkeypatch.setattr(os, "getpid", lambda child=child: child)
        uwsgi.post_fork_hook()
        forks._start_child()
    assert calls == ["ours", "ours"]


def test_hooks_of_the_app_are_kept(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """uWSGI's module of decorators replaces two hooks when it is first imported."""
    uwsgi = module(post_fork_hook=lambda: calls.append("the app's"), spooler="the app's")
    monkeypatch.setitem(sys.modules, "uwsgidecorators", module())
    forks._use_hook_of_uwsgi(uwsgi)
    monkeypatch.setattr(os, "getpid", lambda: 2_000_001)
    uwsgi.post_fork_hook()
    assert calls == ["ours", "the app's"]
    assert uwsgi.spooler == "the app's"


def test_decorators_of_uwsgi_do_not_replace_the_hook(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    uwsgi = module(masterpid=lambda: 1, worker_id=lambda: 1)
    monkeypatch.setitem(sys.modules, "uwsgi", uwsgi)
    monkeypatch.delitem(sys.modules, "uwsgidecorators", raising=False)
    forks._use_hook_of_uwsgi(uwsgi)
    uwsgidecorators: Any = import_module("uwsgidecorators")  # as an app does later
    uwsgidecorators.postfork(lambda: calls.append("the app's"))
    monkeypatch.setattr(os, "getpid", lambda: 2_000_001)
    uwsgi.post_fork_hook()
    assert calls == ["ours", "the app's"]
