"""Sends spellings of request targets to real servers. No request may reach an endpoint without matching its rule."""

import msgspec
import pytest

from attacks.wire import Request, send
from profiles import PROOF
from spellings.served import ASGI_SERVERS, WITH_SCRIPT_NAME, WSGI_SERVERS
from spellings.targets import random_targets, seeds

pytestmark = [pytest.mark.promise(9), pytest.mark.promise(10)]

SERVERS = {**ASGI_SERVERS, **WSGI_SERVERS, **WITH_SCRIPT_NAME}
# between them, they read a target in each of the ways that are known; the others run in the proof
SOME = ("uvicorn-h11", "uvicorn-httptools", "hypercorn", "granian", "gunicorn", "uwsgi", "waitress", "gunicorn-root")
NAMES = [*SERVERS] if PROOF else [*SOME]
STEP, RANDOM = (1, 100) if PROOF else (8, 20)  # each of the named spellings is sent to one server


@pytest.mark.parametrize("name", NAMES)
def test_no_spelling_reaches_an_endpoint_without_its_limit(name: str) -> None:
    escapes, reached = [], 0
    with SERVERS[name]("spelled_asgi:app" if name in ASGI_SERVERS else "spelled_wsgi:app") as server:
        port = int(server.url.rpartition(":")[2])
        for target in [*[*seeds()][NAMES.index(name) % STEP :: STEP], *random_targets(name, RANDOM)]:
            if b"\r" in target or b"\n" in target:
                continue  # the server would read two requests
            written = b"/api" + target if name in WITH_SCRIPT_NAME else target
            reply = send(port, Request("GET", written.decode("latin-1")))
            if reply.status == 200:
                endpoints, found, _ = msgspec.json.decode(reply.body)
                reached += len(endpoints)
                escapes += [(target, *each) for each in found]
    assert escapes == []
    assert reached > 1000 // STEP  # endpoints, of all frameworks together
