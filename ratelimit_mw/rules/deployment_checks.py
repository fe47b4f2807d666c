"""Looks for mistakes in the deployment that only requests show: proxies that are not trusted, and several processes."""

import re
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from typing import Any, Final

from ratelimit_mw.checks.workers import configured_workers, multiple_workers_finding
from ratelimit_mw.core.log import warn, warn_or_fail
from ratelimit_mw.http.client_ip import ClientIPResolver
from ratelimit_mw.http.networks import shortest

_PROXY_HEADERS: Final = ("x-forwarded-for", "forwarded", "x-real-ip", "cf-connecting-ip", "true-client-ip")
_MAX_REQUESTS: Final = 1000  # requests to examine; the check costs time
_MIN_PUBLIC_REQUESTS: Final = 100  # with a proxy's header; a client may send one, a proxy always does
_DJANGO_TEST_SERVER: Final = "testserver"  # the name of Django's test client, which sets wsgi.multiprocess


class ProcessCountCheck:
    """Warns once if a WSGI server has several processes, and `configured_workers` did not find them.

    `done`: no more requests need to be examined; false before the first one. Only a request shows the problem, so it is
    a warning even with `strict`.
    """

    __slots__ = ("_is_needless", "done")

    def __init__(self, store: object) -> None:
        self._is_needless = store != "memory://" or configured_workers() > 1
        self.done = False

    def examine(self, environ: Mapping[str, Any]) -> None:
        """Warn if this request shows several processes. All requests show the same, so one is enough."""
        if self._is_needless or environ.get("SERVER_NAME") != _DJANGO_TEST_SERVER:
            self.done = True
            if environ.get("wsgi.multiprocess") and not self._is_needless:
                warn_or_fail([multiple_workers_finding(None)], strict=False)


class ProxyHeaderCheck:
    """Looks in the first requests for a proxy whose header is ignored, so that all its clients share one bucket.

    Either the proxy is not in `trusted_proxies`, or it sends another header than `proxy_header`, or there are not as
    many proxies as `trusted_proxies` states. `done`: it has warned, or has examined enough requests. Only requests show
    the problem, so it is a warning even with `strict`.
    """

    __slots__ = ("_finder", "_names", "_public_requests", "_seen", "done")

    def __init__(self, finder: ClientIPResolver) -> None:
        self._finder = finder
        self._names = tuple(dict.fromkeys((finder.header, *_PROXY_HEADERS)))
        self._seen = self._public_requests = 0
        self.done = False

    def examine(self, client: str | None, header_lines: Callable[[str], Sequence[str]]) -> None:
        """Warn at the first request that shows such a proxy. `client`: the socket's peer."""
        self._seen += 1
        if self.done:  # several rule sets of an app share this object, see `RuleSet.share_with_outer`
            return
        self.done = self._seen >= _MAX_REQUESTS
        sent = {name: values for name in self._names if (values := header_lines(name))}
        peer = client or ""
        if not sent:
            return
        # a server may have read the header into `client` already, as uvicorn does for a proxy on its host
        if not (peer and any(_mentions(value, peer) for values in sent.values() for value in values)):
            self._examine_headers(peer, sent)

    def _examine_headers(self, peer: str, sent: Mapping[str, Sequence[str]]) -> None:
        """Warn if these headers show such a proxy. `sent`: the lines of each header of proxies."""
        address, own, hops = shortest(peer), self._finder.header, self._finder.hops
        name, shown = next(iter(sent)), address or peer or "a unix socket"
        if not self._finder.trusts(peer):
            # trusted_proxies cannot contain a name, which waitress passes for a unix socket
            listed = address or ("" if peer else "unix:")
            fix = f"put {listed!r} into trusted_proxies" if listed else "set trusted_proxies = 1"
            if name != own:
                fix += f", and set proxy_header = {name!r} if it writes that header itself"
            if self._suffices(address):
                warn(
                    "trusted_proxies: %s sends %s, but is not trusted, so all clients behind it are counted as one, "
                    "also on safelist and blocklist; if it is your proxy, %s",
                    *(shown, name, fix),
                    code="RL-229",
                )
        elif own not in sent:
            if self._suffices(address):
                warn(
                    "proxy_header: %s sends %s, but no %s, so all clients behind it are counted as one, and one that "
                    "writes %s itself can claim any address; if it is your proxy, and it writes that header itself, "
                    "set proxy_header = %r",
                    *(shown, name, own, own, name),
                    code="RL-228",
                )
        elif 0 < (count := len(members := self._finder.members(sent[own]))) < hops:
            if self._suffices(address):
                warn(
                    "trusted_proxies: got %d proxies, but the %s of %s has fewer addresses, %d, so all clients behind "
                    "it are counted as one, and one that writes the header itself can claim any address; if these are "
                    "all your proxies, set trusted_proxies = %d",
                    *(hops, own, shown, count, count),
                    code="RL-244",
                )
        elif (client := self._finder.forwarding_client(members)) is not None and self._suffices(client):
            warn(  # names only the peer: the address may be an attacker's, which must not be trusted
                "trusted_proxies: in the %s of %s, the address of a client has another one to its left, so either a "
                "client wrote the header itself, or one of your proxies is missing in trusted_proxies, and all clients "
                "behind it are counted as one; compare trusted_proxies with your own list of proxies",
                *(own, shown),
                code="RL-247",
            )

    def _suffices(self, proxy: str | None) -> bool:
        """Return whether to warn of this proxy now: of a private one at once, of public ones at the hundredth request.

        If so, no more requests need to be examined.
        """
        if proxy is not None and ip_address(proxy).is_global:
            self._public_requests += 1
            if self._public_requests < _MIN_PUBLIC_REQUESTS:
                return False
        self.done = True
        return True


def _mentions(value: str, client: str) -> bool:
    return re.search(rf"(?<![0-9A-Fa-f:.]){re.escape(client)}(?![0-9A-Fa-f.])", value) is not None
