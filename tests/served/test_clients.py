"""Tests that clients which obey Retry-After on their own wait only once."""

import pytest
from urllib3 import PoolManager, Retry

from web.real_servers import APPS, KINDS

WHEN_REFUSED = Retry(total=5, allowed_methods=None, status_forcelist=[429], respect_retry_after_header=True)


@pytest.mark.promise(4)
@pytest.mark.parametrize(("name", "method"), [("uvicorn", "GET"), ("waitress", "POST")])
def test_urllib3_waits_once_and_is_admitted(name: str, method: str) -> None:
    kind = KINDS[name]
    with (
        kind.serve(f"short_{kind.interface}:app", APPS, *kind.options) as server,
        PoolManager(retries=WHEN_REFUSED) as client,
    ):
        retries = []
        for _ in range(3):
            answer = client.request(method, server.url, body=b"body" if method == "POST" else None)
            assert (answer.status, answer.data) == (200, b"hello")
            assert answer.retries is not None
            retries.append([refused.status for refused in answer.retries.history])
    assert retries == [[], [], [429]]
