"""Matches the Host header against the host patterns of rules."""

import re
from collections.abc import Sequence

from ratelimit_mw.core.errors import ConfigError, ErrorCollector

_HOST = re.compile(r"(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\]")
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_-][a-z0-9_.-]*?)\.?(?::[0-9]*)?")
_MAX_HOST_LENGTH = 300  # characters; a name has at most 253


class Hosts:
    """One or more host patterns: `api.example.com`, or `*.example.com` for all names below it.

    Case, port and a trailing dot are ignored. Raises `ConfigError` that names the place.
    """

    __slots__ = ("_names", "_parents")

    def __init__(self, place: str, value: object) -> None:
        hosts = [value] if isinstance(value, str) else value
        if not isinstance(hosts, Sequence) or isinstance(hosts, (bytes, bytearray)):
            raise ConfigError(
                f"{place}: got {value!r}, expected a host such as 'api.example.com' or a list of these", code="RL-027"
            )
        mistakes = ErrorCollector()
        for index, host in enumerate(hosts):
            with mistakes.collect(place if isinstance(value, str) else f"{place}[{index}]"):
                _check(host)
        mistakes.raise_if_any()
        lower = [host.lower() for host in hosts]
        self._names = frozenset(host for host in lower if not host.startswith("*"))
        self._parents = tuple(host[1:] for host in lower if host.startswith("*"))

    def match(self, values: Sequence[str]) -> bool | None:
        """Return whether the lines of a Host header match; None if frameworks may read them differently.

        For example, without a Host header (HTTP/1.0), Flask and Quart use the name of the server or of their settings.
        """
        if not values:
            return None
        if not values[0]:
            return False
        authority = (
            _AUTHORITY.fullmatch(values[0].lower()) if len(values) == 1 and len(values[0]) <= _MAX_HOST_LENGTH else None
        )
        return None if authority is None else authority[1] in self._names or authority[1].endswith(self._parents)


def _check(host: object) -> None:
    if not isinstance(host, str) or len(host) > _MAX_HOST_LENGTH or not _HOST.fullmatch(host.lower()):
        raise ConfigError(
            f"got {host!r}, expected a name such as 'api.example.com' or '*.example.com', without scheme and port",
            code="RL-027",
        )
