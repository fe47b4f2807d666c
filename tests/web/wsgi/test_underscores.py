"""Header names with underscores, under WSGI servers that keep them."""

import logging
import sys
from types import ModuleType
from typing import Any

import pytest

from ratelimit_mw import ConfigError
from ratelimit_mw.http.views import UNDERSCORE_FINDING, joined_values
from ratelimit_mw.testing import Clock, RecordingStore
from web.faces import WSGI
from web.wsgi_talk import Server, read

pytestmark = pytest.mark.promise(10)

ADAPTER = {"wsgi.multithread": True, "wsgi.multiprocess": True}  # environ of uvicorn, hypercorn, asgiref
UWSGI = {"uwsgi.version": b"2.0.31", "wsgi.multithread": False, "wsgi.multiprocess": False}


@pytest.mark.parametrize(
    ("environ", "keeps"),
    [
        ({"SERVER_SOFTWARE": "Granian"}, True),
        ({"SERVER_SOFTWARE": "WSGIServer/0.2"}, True),
        ({"SERVER_SOFTWARE": "gunicorn/21.2.0"}, True),
        ({"SERVER_SOFTWARE": "gunicorn/9.1"}, True),
        ({"SERVER_SOFTWARE": "gunicorn/22.0.0"}, False),
        ({"SERVER_SOFTWARE": "gunicorn/27.0.1", **ADAPTER}, False),
        ({"SERVER_SOFTWARE": "waitress"}, False),
        ({"SERVER_SOFTWARE": "Werkzeug/3.1.9"}, False),
        (ADAPTER, True),
        (UWSGI, True),
        ({"wsgi.multithread": True, "wsgi.multiprocess": False}, False),
        ({}, False),
    ],
)
def test_servers_that_keep_underscored_headers_are_recognized(
    environ: dict[str, Any], keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "django.core.servers.basehttp", raising=False)
    assert (joined_values(environ) is not None) is keeps


def test_djangos_server_is_known_to_drop_underscored_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "django.core.servers.basehttp", ModuleType("basehttp"))
    assert joined_values({"SERVER_SOFTWARE": "WSGIServer/0.2"}) is None
    assert joined_values({"SERVER_SOFTWARE": "Granian"}) is not None


def clients(server: str | dict[str, Any], *values: str, face: str = "wsgi", **settings: Any) -> list[str]:
    """Return the addresses that are charged if the proxy 10.0.0.1 sends these X-Forwarded-For headers."""
    store = RecordingStore(clock=Clock())
    more = {"limits": "9/hour", "trusted_proxies": ["10.0.0.1"], "plain_keys": True, "key": "ip", **settings}
    app = WSGI[face]({"store": store, **more})
    own = {"SERVER_SOFTWARE": server} if isinstance(server, str) else server
    for value in values:
        read(Server(HTTP_X_FORWARDED_FOR=value, REMOTE_ADDR="10.0.0.1", **own).ask(app))
    return [charge.key.partition("}")[0].removeprefix("{ip=") for _, charges in store.calls for charge in charges]


JOINED = "192.0.2.1,203.0.113.9"


def test_joined_x_forwarded_for_headers_are_ignored_under_granian(caplog: pytest.LogCaptureFixture) -> None:
    values = ("192.0.2.1", "198.51.100.1, 192.0.2.1", JOINED, JOINED)
    assert clients("Granian", *values) == ["192.0.2.1", "192.0.2.1", "10.0.0.1", "10.0.0.1"]
    assert caplog.messages.count(f"ratelimit_mw: {UNDERSCORE_FINDING.text}") == 1


@pytest.mark.parametrize("face", WSGI)
def test_a_list_is_ignored_under_uwsgi_which_joins_as_proxies_do(face: str, caplog: pytest.LogCaptureFixture) -> None:
    values = ("192.0.2.1", "198.51.100.1, 192.0.2.1", "192.0.2.1, 198.51.100.1", JOINED)
    assert clients(UWSGI, *values, face=face) == ["192.0.2.1", "10.0.0.1", "10.0.0.1", "10.0.0.1"]
    assert caplog.messages.count(f"ratelimit_mw: {UNDERSCORE_FINDING.text}") == 1


def test_strict_raises_under_uwsgi() -> None:
    with pytest.raises(ConfigError) as caught:
        clients(UWSGI, "192.0.2.1", strict=True)
    assert str(caught.value) == UNDERSCORE_FINDING.text


def test_joined_x_forwarded_for_headers_are_read_under_gunicorn_27(caplog: pytest.LogCaptureFixture) -> None:
    assert clients("gunicorn/27.0.1", "1.0.0.1,1.1.1.1") == ["1.1.1.1"]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_underscored_headers_are_not_reported_without_trusted_proxies(caplog: pytest.LogCaptureFixture) -> None:
    assert clients("Granian", JOINED, trusted_proxies=[]) == ["10.0.0.1"]
    assert UNDERSCORE_FINDING.text not in caplog.text


def test_strict_raises_under_servers_that_keep_underscored_headers() -> None:
    with pytest.raises(ConfigError) as caught:
        clients("Granian", "192.0.2.1", strict=True)
    assert str(caught.value) == UNDERSCORE_FINDING.text
    assert clients("waitress", "192.0.2.1", strict=True) == ["192.0.2.1"]
