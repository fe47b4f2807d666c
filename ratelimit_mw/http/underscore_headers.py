"""Detects WSGI servers that read `X_Forwarded_For` as `X-Forwarded-For`, which lets clients forge addresses."""

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ratelimit_mw.core.log import Finding, warn_throttled

_MERGING_SERVERS: Final = re.compile(r"Granian|WSGIServer/|gunicorn/(?:1?\d|2[01])\.", re.IGNORECASE)
_DJANGO_SERVER: Final = "django.core.servers.basehttp"  # runserver is based on wsgiref's server, but drops such names
_JOINED_VALUES: Final = re.compile(r",(?! )")  # these servers join lines without a space; proxies write one

UNDERSCORE_FINDING: Final = Finding(
    "trusted_proxies: this WSGI server reads a header X_Forwarded_For as X-Forwarded-For, so a client can forge its "
    "address; drop header names with underscores in the proxy, or use a server that does (gunicorn, waitress)"
)


def merges_underscores(environ: Mapping[str, Any]) -> bool:
    """Return whether the WSGI server keeps header names with underscores, as far as its environ shows.

    The WSGI adapters of ASGI servers (uvicorn, hypercorn, asgiref) keep them. They do not set `SERVER_SOFTWARE`, and
    set both `wsgi.multithread` and `wsgi.multiprocess`.
    """
    software = environ.get("SERVER_SOFTWARE")
    if software is None:
        return environ.get("wsgi.multithread") is True and environ.get("wsgi.multiprocess") is True
    if not _MERGING_SERVERS.match(software):
        return False
    return not software.startswith("WSGIServer/") or _DJANGO_SERVER not in sys.modules


def unambiguous_values(name: str, values: Sequence[str]) -> Sequence[str]:
    """Return the lines of a proxy's header; none if the server joined lines, as it is unknown which the proxy wrote."""
    if not any(_JOINED_VALUES.search(value) for value in values):
        return values
    warn_throttled(
        name,
        "the server joined several headers of this name, or of its spelling with underscores; all of them are ignored",
    )
    return ()
