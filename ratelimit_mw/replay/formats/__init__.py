"""Chooses the format of a log, among those that a replay can read."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.validation import closest_match
from ratelimit_mw.replay.formats.base import REQUEST, STAMP, LogFormat
from ratelimit_mw.replay.formats.cloud import Alb, CloudFront, envoy
from ratelimit_mw.replay.formats.json_lines import Caddy, envoy_json, json_fields
from ratelimit_mw.replay.formats.servers import COMBINED, COMMON, is_server_format, server_format

_SAMPLE: Final = 100  # lines by which a format is found
_NEARLY: Final = 0.9  # see `_best_format`
_MAKERS: Final[Mapping[str, Callable[[], LogFormat]]] = {  # the order matters, see `_best_format`
    "combined": lambda: server_format(COMBINED),
    "common": lambda: server_format(COMMON),
    "caddy": Caddy,
    "envoy": envoy,
    "envoy-json": envoy_json,
    "alb": Alb,
    "cloudfront": CloudFront,
}
FORMATS: Final = ("common", "combined", "caddy", "envoy", "alb", "cloudfront", "json")


def format_of(text: str | None, fields: Mapping[str, str], sample: Sequence[str]) -> LogFormat:
    """Return the format that `text` names or contains; for None, it is recognized by the sample.

    `fields`: of the format `json`. `sample`: the first lines of the log. Raises `ConfigError` if no format is found.
    """
    if fields and text not in (None, "json"):
        raise ConfigError(f"--field: only the format json has fields, not {text!r:.100}", code="RL-051")
    if text == "json" or fields:
        return json_fields(fields)
    if text is None:
        return _recognize(sample)
    if text == "envoy":
        return _best_format(["envoy", "envoy-json"], sample)[1]
    if text in _MAKERS:
        return _make_format(text, sample)
    if is_server_format(text):
        return server_format(text)
    close = closest_match(text, FORMATS)
    hint = f" ({close!r}?)" if close else ""
    raise ConfigError(
        f"--format: got {text!r:.100}{hint}, expected one of {', '.join(FORMATS)}, or nginx's log_format or Apache's "
        "LogFormat, such as '$remote_addr - $remote_user [$time_local] \"$request\" $status'",
        code="RL-051",
    )


def _recognize(sample: Sequence[str]) -> LogFormat:
    count, log = _best_format(list(_MAKERS), sample)
    if not count and any(line.strip() for line in sample):
        raise ConfigError(
            "--format: the format of the log was not recognized by its first lines; name it: one of "
            f"{', '.join(FORMATS)}, or nginx's log_format or Apache's LogFormat",
            code="RL-056",
        )
    return log


def _best_format(names: Sequence[str], sample: Sequence[str]) -> tuple[int, LogFormat]:
    """Return how many lines of the sample the best format reads, and the format.

    The best is the first of `names` that reads at least `_NEARLY` of the most lines that any format reads. So
    `combined` comes before `common`, which also reads a combined log, even its cut lines, but without the last fields.
    """
    counts: dict[str, int] = {}
    for name in names:
        log = _MAKERS[name]()
        records = log.read(sample[:_SAMPLE]).records
        counts[name] = sum(log.time(record[STAMP]) is not None and bool(record[REQUEST]) for record in records)
    enough = _NEARLY * max(counts.values())
    best = next(name for name, count in counts.items() if count >= enough)
    return counts[best], _make_format(best, sample)


def _make_format(name: str, sample: Sequence[str]) -> LogFormat:
    log = _MAKERS[name]()
    log.name = name.removesuffix("-json")
    log.learn(sample)
    return log
