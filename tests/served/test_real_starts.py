"""No server starts with wrong settings: it ends, and says where the mistake is."""

import pytest

from web.real_servers import APPS, KINDS
from web_servers import WebServerError

WRONG = {"asgi": "wrong_limit:app", "wsgi": "wrong_limit_wsgi:app"}


@pytest.mark.promise(9)
@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if not kind.http2])
def test_wrong_settings_stop_the_server_with_their_message(name: str) -> None:
    kind = KINDS[name]
    with pytest.raises(WebServerError) as caught, kind.serve(WRONG[kind.interface], APPS, *kind.options):
        pass
    assert "its process ended with" in str(caught.value)  # 0 for some: hypercorn 0.18, waitress 3.0
    assert "rules[0].limits[1]: '10/mfoo': unknown period 'mfoo'" in str(caught.value)
