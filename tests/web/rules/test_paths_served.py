"""Tests which limits are charged for each path of the table, as a server passes it."""

from typing import Any

import pytest

from ratelimit_mw import asgi, wsgi
from ratelimit_mw.testing import Clock, RecordingStore
from web.asgi_talk import HTTP, App200, talk
from web.path_cases import PATH_CASES, WHOLE_PATH_CASES, PathCase
from web.wsgi_talk import Server, hello, read

pytestmark = pytest.mark.promise(10)


def settings_of(case: PathCase, store: RecordingStore) -> dict[str, Any]:
    rule = {"path": case.template, "limits": "5/hour", "name": "rule"}
    own: dict[str, Any] = {"exempt": [case.template]} if case.exempt else {"rules": [rule]}
    return {"limits": "9/hour", "store": store, "ignore_case": case.ignore_case, **own}


def applied(store: RecordingStore) -> frozenset[str]:
    """Return the rules that were charged. Asserts that each was charged once, in at most one call."""
    assert len(store.calls) <= 1
    names = [charge.key.rpartition(":")[2] for _, charges in store.calls for charge in charges]
    assert len(set(names)) == len(names)
    return frozenset(names)


def over_asgi(case: PathCase, path: str, **more: Any) -> frozenset[str]:
    store = RecordingStore(clock=Clock())
    app = asgi.RateLimitMiddleware(App200(), **settings_of(case, store))
    talk(app, HTTP, path=path, **more)
    return applied(store)


@pytest.mark.parametrize("case", PATH_CASES, ids=lambda case: case.name)
def test_asgi_charges_the_expected_limits_for_each_path(case: PathCase) -> None:
    assert over_asgi(case, case.root + case.path, root_path=case.root) == case.applies


@pytest.mark.parametrize("case", WHOLE_PATH_CASES, ids=lambda case: case.name)
def test_asgi_charges_the_expected_limits_inside_and_outside_the_root(case: PathCase) -> None:
    assert over_asgi(case, case.path, root_path=case.root) == case.applies


@pytest.mark.parametrize("case", [case for case in PATH_CASES if not case.root], ids=lambda case: case.name)
def test_asgi_selects_limits_by_the_path_alone(case: PathCase) -> None:
    """The Host header, the raw path, the query and proxy headers do not select the limits (CVE-2026-48710)."""
    headers = [(b"host", b"x/health?"), (b"x-original-url", b"/health"), (b"x-forwarded-prefix", b"/health")]
    more = {"raw_path": b"/health", "query_string": b"path=/health", "headers": headers}
    assert over_asgi(case, case.path, **more) == case.applies


@pytest.mark.parametrize("case", PATH_CASES, ids=lambda case: case.name)
def test_wsgi_charges_the_expected_limits_for_each_path(case: PathCase) -> None:
    store = RecordingStore(clock=Clock())
    path = case.path.encode().decode("latin-1")
    server = Server(PATH_INFO=path, SCRIPT_NAME=case.root, HTTP_X_ORIGINAL_URL="/health", QUERY_STRING="path=/health")
    read(server.ask(wsgi.RateLimitMiddleware(hello, **settings_of(case, store))))
    assert applied(store) == case.applies


def test_wsgi_treats_a_missing_path_as_the_root() -> None:
    store = RecordingStore(clock=Clock())
    server = Server(SCRIPT_NAME="/sub")
    del server.environ["PATH_INFO"]
    rule = {"path": "/", "limits": "5/hour", "name": "rule"}
    read(server.ask(wsgi.RateLimitMiddleware(hello, limits="9/hour", rules=[rule], store=store)))
    assert applied(store) == {"rule"}


def test_wsgi_also_decodes_invalid_utf8_as_bottle_does() -> None:
    store = RecordingStore(clock=Clock())
    rule = {"path": "/login", "limits": "5/hour", "name": "rule"}
    server = Server(PATH_INFO="/login\xff")
    read(server.ask(wsgi.RateLimitMiddleware(hello, limits="9/hour", rules=[rule], store=store)))
    assert applied(store) == {"rule", "default"}
