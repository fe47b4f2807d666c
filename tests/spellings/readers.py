"""Parses request targets as each server does.

A reader returns the path as in the ASGI scope or the WSGI environ, or None if the server rejects the target.
"""

import re
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import httptools
from gunicorn.util import (  # type: ignore[import-untyped]  # gunicorn has no types
    split_request_uri,
    unquote_to_wsgi_str,
)
from waitress.parser import ParsingError, split_uri  # type: ignore[import-untyped]  # waitress has no types

_VISIBLE: Final = re.compile(rb"[\x21-\x7e]+")  # the bytes that h11 accepts in a target
Read = dict[str, Any]
Reader = Callable[[bytes, str], Read | None]  # the target and the root path


def uvicorn_h11(target: bytes, root: str) -> Read | None:
    if not _VISIBLE.fullmatch(target):
        return None
    raw = target.partition(b"?")[0]
    return {"path": root + unquote(raw.decode("ascii")), "raw_path": root.encode() + raw, "root_path": root}


def uvicorn_httptools(target: bytes, root: str) -> Read | None:
    try:
        raw = httptools.parse_url(target).path
        path = unquote(raw.decode("ascii"))
    except (httptools.HttpParserInvalidURLError, AttributeError, UnicodeDecodeError):
        return None
    return {"path": root + path, "raw_path": root.encode() + raw, "root_path": root}


def hypercorn(target: bytes, root: str) -> Read | None:
    if not _VISIBLE.fullmatch(target):
        return None
    raw = target.partition(b"?")[0]
    return {"path": unquote(raw.decode("ascii")), "raw_path": raw, "root_path": root}


def gunicorn(target: bytes, root: str) -> Read | None:
    if not target or b" " in target:
        return None
    try:
        path = split_request_uri(target.decode("latin-1")).path or ""
    except ValueError:
        return None
    if not path.startswith(root):
        return None
    return {"PATH_INFO": unquote_to_wsgi_str(path[len(root) :]), "SCRIPT_NAME": root}


def waitress(target: bytes, root: str) -> Read | None:
    if not target or any(byte <= 0x20 for byte in target):
        return None
    try:
        path = split_uri(target)[2]
    except (ParsingError, ValueError):
        return None
    if path.startswith("/"):
        path = "/" + path.lstrip("/")
    if path == root:
        path = ""
    elif root and path.startswith(root + "/"):
        path = path[len(root) :]
    return {"PATH_INFO": path, "SCRIPT_NAME": root}


def wsgiref(target: bytes, root: str) -> Read | None:
    if not target or re.search(rb"\s", target):
        return None
    text = target.decode("latin-1")
    if text.startswith("//"):  # http.server, against redirects to another host
        text = "/" + text.lstrip("/")
    return {"PATH_INFO": unquote(text.partition("?")[0], "iso-8859-1"), "SCRIPT_NAME": root}


def werkzeug(target: bytes, root: str) -> Read | None:
    if not target or re.search(rb"\s", target):
        return None
    text = target.decode("latin-1")
    if text.startswith("//"):
        text = "/" + text.lstrip("/")
    try:
        url = urlsplit(text)
    except ValueError:
        return None
    path = f"/{url.netloc}{url.path}" if not url.scheme and url.netloc else url.path
    return {"PATH_INFO": unquote(path).encode().decode("latin-1"), "SCRIPT_NAME": root}


ASGI: Final[dict[str, Reader]] = {"h11": uvicorn_h11, "httptools": uvicorn_httptools, "hypercorn": hypercorn}
WSGI: Final[dict[str, Reader]] = {
    "gunicorn": gunicorn,
    "waitress": waitress,
    "wsgiref": wsgiref,
    "werkzeug": werkzeug,
}
