"""Checks the arguments that describe an override or a switch."""

from collections.abc import Mapping, Sequence
from getpass import getuser
from math import isfinite
from socket import gethostname
from typing import Final

from ratelimit_mw.admin.target import Target, header_of
from ratelimit_mw.algorithms.notation import parse
from ratelimit_mw.core.errors import ConfigError, error_location
from ratelimit_mw.core.identity import encode_part, rule_spellings, stored_rule
from ratelimit_mw.http.client_ip import check_no_underscore
from ratelimit_mw.http.cookies import Cookies
from ratelimit_mw.http.networks import parse_network
from ratelimit_mw.rules.override_entries import ADDRESS, KEY, MAX_DURATION, Action

Headers = Sequence[str] | Mapping[str, str]
_MAX_NAMES: Final = 50  # in a message
_OF_ENDPOINT: Final = "; for a limit on an endpoint its name with an `@`, as `keys` shows it"
_MAX_TEXT: Final = 500  # characters of a note or a name
_UNITS: Final = ((86_400, "d"), (3600, "h"), (60, "m"))  # seconds
_WHO: Final = "expected one of ip, user, headers with one header, and key"


def who_of(ip: str | None, user: str | None, headers: Headers, key: str | None) -> str:
    """Return the client of an override. Raises `ConfigError` unless exactly one argument describes it."""
    lines = [f"{name}: {value}" for name, value in headers.items()] if isinstance(headers, Mapping) else headers
    if isinstance(lines, str) or not isinstance(lines, Sequence) or len(lines) > 1:
        raise ConfigError(f"--header: got {headers!r:.100}, {_WHO}", code="RL-064")
    given = [one for one in (ip, user, lines[0] if lines else None, key) if one is not None]
    if len(given) != 1:
        raise ConfigError(f"override: got {len(given)} descriptions of the client, {_WHO}", code="RL-064")
    if ip is not None:
        with error_location("--ip"):
            network = parse_network(ip)
        return f"{ADDRESS}{network.network_address if network.prefixlen == network.max_prefixlen else network}"
    if lines:
        return _who_of_header(lines[0])
    option, text = ("--user", user) if key is None else ("--key", key)
    if not isinstance(text, str) or not text:
        raise ConfigError(f"{option}: got {text!r}, expected text", code="RL-064")
    return encode_part("user", text) if key is None else f"{KEY}{text}"


def _who_of_header(line: str) -> str:
    raw_name, raw_value = header_of(line)
    name, value = raw_name.decode(), raw_value.decode()
    with error_location("--header"):
        check_no_underscore(name)
        if name == "cookie":
            cookie = value.partition("=")[0].strip()
            name, found = f"cookie:{cookie}", Cookies([value]).only(cookie)
        else:
            name, found = f"header:{name}", value
        if not found:
            raise ConfigError(f"got {line!r:.100}, expected one value, such as 'X-Api-Key: abc'", code="RL-064")
    return encode_part(name, found)


def action_of(limits: str | None, *, exempt: bool, block: bool) -> Action:
    """Return the action of an override. Raises `ConfigError` for limits that it cannot have."""
    if (limits is not None) + bool(exempt) + bool(block) != 1:
        raise ConfigError("override: expected one of limits, exempt and block", code="RL-064")
    if limits is None:
        return "exempt" if exempt else "block"
    with error_location("--limits"):
        parse(limits)  # text has neither slots nor max_delay, which an override cannot have
    return "limits"


def checked_rule(target: Target, rule: str | None) -> str | None:
    """Return the name of a rule, or of a limit on an endpoint: that one begins with `@`, however it is written.

    Without the framework's app, the names of limits on endpoints are unknown: a name that begins with `@` is theirs.
    """
    if rule is None:
        return None
    names, hint = target.rules.rule_names, ""
    if rule in names:
        return rule
    if target.find_endpoint_rules is None:
        hint = _OF_ENDPOINT
        if isinstance(rule, str) and rule.startswith("@"):
            return stored_rule(rule)
    else:
        limit_sets = [one.limit_set for one in target.find_endpoint_rules() if not one.is_exempt]
        for one in limit_sets:
            if rule in rule_spellings(one.bucket_name):  # `@search` and `search` also name the limit `@search()`
                return stored_rule(rule if rule.startswith("@") else f"@{rule}")
        for one in limit_sets:
            if rule == one.name:  # as in headers
                return stored_rule(one.bucket_name)
        names = list(dict.fromkeys([*names, *(one.bucket_name for one in limit_sets)]))
    shown = ", ".join(names[:_MAX_NAMES]) + (f" and {len(names) - _MAX_NAMES} others" * (len(names) > _MAX_NAMES))
    raise ConfigError(f"--rule: got {rule!r:.100}, expected one of {shown}{hint}", code="RL-065")


def checked_duration(duration: float) -> float:
    """Return a valid duration in seconds."""
    is_number = isinstance(duration, (int, float)) and not isinstance(duration, bool) and isfinite(duration)
    if not is_number or not 0 < duration <= MAX_DURATION:
        raise ConfigError(
            f"--for: got {duration!r} seconds, expected more than 0 and at most a year, 366 days", code="RL-064"
        )
    return duration


def signature(note: str, by: str) -> tuple[str, str]:
    """Return the note, and who makes the change."""
    for option, text in (("--note", note), ("--by", by)):
        if not isinstance(text, str) or len(text) > _MAX_TEXT or not text.isprintable():
            raise ConfigError(
                f"{option}: got {text!r:.100}, expected at most {_MAX_TEXT} characters on one line", code="RL-064"
            )
    return note, by or _operator()


def _operator() -> str:
    try:
        name = getuser()
    except (ImportError, KeyError, OSError):  # no name for the number of the user
        name = "unknown"
    return f"{name}@{gethostname()}"


def shown_duration(duration: float) -> str:
    """Return a duration as operators write it, such as `1d`."""
    for seconds, unit in _UNITS:
        if duration % seconds == 0:
            return f"{int(duration // seconds)}{unit}"
    return f"{duration:g}s"
