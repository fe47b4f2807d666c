"""Checks the limits and the key that a call names: those of a `Limiter`, of a charge, and of a reservation."""

from collections.abc import Iterable, Mapping

from ratelimit_mw.algorithms.notation import parse
from ratelimit_mw.core.errors import ConfigError, error_location
from ratelimit_mw.core.limit import Limit

Limits = str | Limit | Iterable[str | Limit]  # notation, a Limit, or a sequence of either
Key = str | tuple[str, ...]


def check_key(key: Key) -> tuple[str, ...]:
    """Return the parts of a key. Raises `ConfigError` if it is invalid."""
    parts = (key,) if isinstance(key, str) else key
    if not isinstance(parts, tuple) or not parts or not all(isinstance(part, str) and part for part in parts):
        raise ConfigError(f"key: got {key!r}, expected a non-empty string, or a non-empty tuple of them", code="RL-045")
    return parts


def check_iterable(limits: Iterable[str | Limit]) -> Iterable[str | Limit]:
    """Return the limits. Raises `ConfigError` if they are a table, or no iterable."""
    if isinstance(limits, Mapping) or not isinstance(limits, Iterable):
        raise ConfigError(
            f"limits: got {limits!r}, expected text such as '100/minute', a Limit, which may have a name, or a list of "
            "these",
            code="RL-009",
        )
    return limits


def as_limits(limits: Limits) -> list[Limit]:
    """Return the limits of notation, a Limit, or a sequence of either. Raises `ConfigError` if there are none."""
    if isinstance(limits, str):
        return _reject_duplicates(list(parse(limits)))
    if isinstance(limits, Limit):
        return [limits]
    result: list[Limit] = []
    for index, item in enumerate(check_iterable(limits)):
        try:
            result += as_limits(item) if isinstance(item, (str, Limit)) else parse(item)
        except ConfigError as error:
            raise error.with_prefix(f"limits[{index}]") from None
    if not result:
        raise ConfigError("limits: got none, expected at least one", code="RL-002")
    with error_location("limits"):
        return _reject_duplicates(result)


def _reject_duplicates(limits: list[Limit]) -> list[Limit]:
    """Return the limits. Raises `ConfigError` if two share a bucket, because each hit would count twice."""
    if len(limits) > 1 and len({limit.bucket for limit in limits}) < len(limits):
        buckets = [limit.bucket for limit in limits]
        duplicate = next(limit for limit in limits if buckets.count(limit.bucket) > 1)
        raise ConfigError(
            f"{duplicate.notation} appears twice, and would count each hit twice; give one of them a name",
            code="RL-018",
        )
    return limits
