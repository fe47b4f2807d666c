"""Replays access logs against settings, to find which requests these limits would have refused.

`replay("limits.toml", "access.log")` returns a `Report`. The command is `python -m ratelimit_mw replay`.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.replay.results import Offender, Report, RuleResult, Suggestion
from ratelimit_mw.replay.run import Job, run
from ratelimit_mw.replay.times import period_of
from ratelimit_mw.settings import Settings

__all__ = ["Offender", "Report", "RuleResult", "Suggestion", "replay"]


def replay(
    settings: Settings | Mapping[str, Any] | str | Path,
    *logs: str | Path,
    format: str | None = None,  # noqa: A002  # the option's name
    fields: Mapping[str, str] | None = None,
    since: str | datetime | None = None,
    until: str | datetime | None = None,
    rules: Sequence[str] = (),
    assume: Sequence[str] = (),
    as_logged: bool = False,
    suggest: bool = False,
    distributions: bool = False,
    jobs: int = 1,
    on_decision: Callable[[float, Verdict | None], object] | None = None,
    on_progress: Callable[[int, int], object] | None = None,
) -> Report:
    """Replay access logs against settings, and return which requests these would have refused.

    `settings`: a file, a mapping or an object. The replay does not connect to a store. `logs`: files in any order, also
    compressed with gzip; `-` is standard input. Lines may be up to 100,000 lines from their place. `format`: the name
    of a format, or nginx's `log_format` or Apache's `LogFormat`; None to recognize it by the first lines. `fields`: the
    paths of JSON fields, such as `{"ip": ".client", "time": ".ts"}`. `since`, `until`: the period; a time without a
    zone is in the zone of the log. `rules`: the rules to report; all rules are replayed. `assume`: values that the log
    lacks, such as `header:x-api-key=ip`. `as_logged`: leave all requests of a second at its beginning, instead of
    spreading them over it. `suggest`: suggest quotas. `distributions`: keep the data for the charts of an HTML report.
    `jobs`: the number of processes, which divide the clients. `on_decision`: receives the time of each request, in
    seconds since 1970, and its verdict; None as the verdict if no limit applied. `on_progress`: receives the number of
    bytes read so far, and of all bytes.

    Raises `ConfigError` for mistakes in the settings or arguments, for a log that cannot be read, and for settings that
    depend on values that the log lacks.
    """
    job = Job(
        settings=settings,
        logs=logs,
        format=format,
        fields=fields or {},
        period=period_of(since, until),
        assume=assume,
        as_logged=as_logged,
        rules=rules,
        suggest=suggest,
        distributions=distributions,
    )
    return run(job, jobs, on_decision, on_progress)
