"""Decides which callers the service answers, and which ones it trusts to describe a request."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from hmac import compare_digest
from typing import Any, Final

from ratelimit_mw.http.callers import checked_secret, is_local, is_loopback
from ratelimit_mw.http.client_ip import ClientIPResolver
from ratelimit_mw.http.views import is_peer_lost
from ratelimit_mw.service.answers import Rejected
from ratelimit_mw.settings import Settings

SECRET_HEADER: Final = "x-ratelimit-secret"  # noqa: S105  # a name
_RAW_SECRET_HEADER: Final = SECRET_HEADER.encode()

_NOT_LOOPBACK: Final = (
    "this service has no secret, so it answers callers on loopback and unix sockets only; set a secret on both sides"
)
_WRONG_SECRET: Final = "X-RateLimit-Secret: missing or wrong, expected the secret of this service"  # noqa: S105  # a text
_CLOSE: Final = [("Connection", "close")]
LOST: Final = "client: unknown, expected a caller that keeps its connection open until it is answered"
_CROSS_SITE: Final = "Origin: present, expected a program; the service does not answer web pages"


@contextmanager
def socket_mode(mode: int) -> Iterator[None]:
    """Give the unix sockets that are bound in the block these permissions. They never have wider ones, even briefly.

    This changes the umask of the process, so no other thread may create files meanwhile.
    """
    before = os.umask(0o777 & ~mode)
    try:
        yield
    finally:
        os.umask(before)


class Access:
    """Checks the callers of the service. `secret`: the text they must send; empty for callers on this host only."""

    def __init__(self, settings: Settings, secret: str) -> None:
        resolver = ClientIPResolver(settings.trusted_proxies, settings.proxy_header)
        self.proxy_header: Final = resolver.header
        self._trusts: Final = resolver.trusts if settings.trusted_proxies else None
        self._secret: Final = checked_secret(secret).encode()

    def check(self, scope: Mapping[str, Any]) -> None:
        """Raise `Rejected` for a caller that gets no answer. Its connection ends: idle ones stay for an hour."""
        if self._secret:
            sent = [value for name, value in scope["headers"] if name == _RAW_SECRET_HEADER]
            if len(sent) != 1 or not compare_digest(sent[0], self._secret):
                raise Rejected(403, _WRONG_SECRET, _CLOSE)
            return
        server, client = scope.get("server"), scope.get("client")
        host = server[0] if server else None
        if not is_local(host, client[0] if client else None):
            raise Rejected(403, _NOT_LOOPBACK, _CLOSE)
        if not client and is_peer_lost(scope) and not is_loopback(host or ""):  # its peer may be anywhere
            raise Rejected(403, LOST, _CLOSE)

    def problem_of_metadata(self, peer: str | None, metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
        """Return the reason to reject a gRPC call, or None. `peer`: its address, None for a unix socket."""
        if self._secret:
            sent = [value for name, value in metadata if name == SECRET_HEADER]
            text = sent[0] if len(sent) == 1 else ""
            raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
            return None if compare_digest(raw, self._secret) else _WRONG_SECRET
        return None if is_local(None, peer) else _NOT_LOOPBACK

    def distrust(self, peer: str | None) -> str | None:
        """Return the reason not to trust a caller's description of a request; None for a trusted proxy."""
        if self._trusts is not None and self._trusts(peer):
            return None
        listed = "'unix:'" if not peer else repr(peer)
        return (
            f"trusted_proxies: the caller {listed} is not one of them, so it may not describe requests; "
            f"add {listed} to trusted_proxies in the settings of this service"
        )


def web_page_problem(scope: Mapping[str, Any]) -> str | None:
    """Return the reason to reject a POST that a web page sent; None if a program sent it.

    A browser on this host could otherwise reset limits for any page that it shows. Browsers send `Origin` with every
    POST.
    """
    return _CROSS_SITE if any(name == b"origin" for name, _ in scope["headers"]) else None
