"""Compares the paths that real servers read from random targets with those that the service reads."""

from collections.abc import Iterator
from typing import Any

import pytest

from attacks.wire import Request, send
from profiles import PROOF
from ratelimit_mw.http.paths import Forms
from ratelimit_mw.http.targets import _as_in_uwsgi, paths_of_target
from ratelimit_mw.http.views import AsgiRequest, WsgiRequest
from spellings.served import ASGI_SERVERS, WSGI_SERVERS
from spellings.targets import FOUND, dotted_targets, random_targets

pytestmark = [pytest.mark.promise(9), pytest.mark.promise(10)]

RANDOM = 5000 if PROOF else 50  # of each of both kinds, for each server
SERVERS = [name for name in [*ASGI_SERVERS, *WSGI_SERVERS] if not name.endswith("-root")]
DEVELOPING = ("werkzeug", "wsgiref")  # they split the request line at more white space, and decode bytes otherwise
UNSENT = {*range(0x21), 0x7F} - {0x09}  # proxies reject these; tabs pass through nginx before 1.21.1


def read_by(name: str) -> Iterator[tuple[bytes, str]]:
    """Yield targets that the server accepts, and the path that it passes to the app."""
    serving, app = (ASGI_SERVERS, "over_asgi") if name in ASGI_SERVERS else (WSGI_SERVERS, "over_wsgi")
    unsent = {*range(256)} - {*range(0x21, 0x7F)} if name in DEVELOPING else UNSENT
    with serving[name](f"path_app:{app}") as server:
        port = int(server.url.rpartition(":")[2])
        for target in [*FOUND, *dotted_targets(name, RANDOM), *random_targets(name, RANDOM)]:
            if unsent & {*target}:
                continue
            reply = send(port, Request("GET", target.decode("latin-1")))
            if reply.status == 200:
                yield target, reply.body.decode("utf-8", "surrogatepass")


@pytest.mark.parametrize("name", SERVERS)
def test_service_has_each_form_of_the_path_that_a_server_passes_on(name: str) -> None:
    compared, missing = 0, []
    for target, path in read_by(name):
        raw: dict[str, Any] = {"path": path, "PATH_INFO": path}
        request = AsgiRequest(raw, None) if name in ASGI_SERVERS else WsgiRequest(raw, None)
        known, forms = Forms.of(paths_of_target(target)), Forms.of(request.paths)
        compared += 1
        if not ({*forms.received} <= {*known.received} and {*forms.normal} <= {*known.normal}):
            missing.append((target, path))
    assert missing == []
    assert compared > RANDOM


def test_uwsgi_passes_on_the_path_that_is_computed_for_it() -> None:
    read = [*read_by("uwsgi")]
    computed = [_as_in_uwsgi(target.partition(b"?")[0].partition(b"#")[0]) for target, _ in read]
    assert [path.encode("latin-1") or b"/" for _, path in read] == [path or b"/" for path in computed]
    assert len(read) > RANDOM
