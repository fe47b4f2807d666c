"""Replays access logs against settings, to find what these limits would have refused.

`replay("limits.toml", "access.log")` returns a `Report`. The command is `python -m ratelimit_mw replay`.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.replay.results import Offender, Report, RuleResult, Suggestion
from ratelimit_mw.replay.run import Job, period_of, run
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

    `settings`: as a file, a mapping or an object; no store is connected to. `logs`: files, also packed with gzip, in
    any order; `-` is standard input. Lines may be up to 100,000 lines from their place. `format`: the name of a format,
    or nginx's `log_format` or Apache's `LogFormat`; None: recognized by the first lines. `fields`: of JSON, such as
    `{"ip": ".client", "time": ".ts"}`. `since`, `until`: a time without a zone is in that of the log. `rules`: only
    these are reported; all are replayed. `assume`: what the log does not tell, such as `header:x-api-key=ip`.
    `as_logged`: all requests of a second are at its beginning, instead of spread over it. `suggest`: suggest quotas.
    `distributions`: keep what the charts of an HTML report need. `jobs`: the number of processes, which divide the
    clients. `on_decision`: receives the time of each request, in seconds since 1970, and its verdict; None as the
    verdict if no limit applied. `on_progress`: receives the bytes read so far, and all of them.

    Raises `ConfigError` for mistakes in the settings or arguments, for a log that cannot be read, and for settings that
    depend on what the log does not tell.
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
