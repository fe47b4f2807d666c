"""`flask ratelimit`: `check`, and the commands of `ratelimit_mw.admin`, for the app that Flask loads."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from ratelimit_mw.admin.commands import run_commands
from ratelimit_mw.admin.output import write_line
from ratelimit_mw.admin.target import DescribedRequest, Step, Target
from ratelimit_mw.core.errors import require
from ratelimit_mw.flask.endpoint_limits import enforcement_findings, is_strict

with require("flask"):
    import click
    from flask import Flask, current_app, request
    from flask.cli import with_appcontext


@click.command(
    "ratelimit",
    short_help="Show who is limited, let them in again, and change limits.",
    add_help_option=False,  # the commands have their own
    context_settings={"ignore_unknown_options": True},
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
@with_appcontext
def ratelimit_command(context: click.Context, words: tuple[str, ...]) -> None:
    """Run one of check, peek, reset, keys, top, tail, override, switch, changes."""
    app: Flask = current_app._get_current_object()  # type: ignore[attr-defined]  # noqa: SLF001  # documented
    context.exit(run_commands("flask ratelimit", words, lambda _: _target(app), partial(_add_check, app)))


def _add_check(app: Flask, commands: Any) -> None:
    about = "find limits that nothing enforces, settings that nothing reads, and rules for paths without a route"
    parser = commands.add_parser("check", help=about, description=about)
    parser.set_defaults(run=lambda _: _check(app))


def _check(app: Flask) -> int:
    """Print what the start and the first request report. Return 1 if one of them fails, as it does with `strict`."""
    hooks = app.extensions["ratelimit_mw"]
    findings = [*hooks.gate.findings, *enforcement_findings(), *hooks.first_request.findings(app)]
    findings += hooks.endpoint_findings()
    errors = [finding for finding in findings if finding.weakens_limits] if is_strict(app) else []
    counts = [(len(errors), "mistake"), (len(findings) - len(errors), "warning")]
    write_line(f"{app.name}: " + ", ".join(f"{count or 'no'} {name}{'s' * (count != 1)}" for count, name in counts))
    for finding in [*errors, *(one for one in findings if one not in errors)]:
        write_line(f"  {finding.message}")
    return 1 if errors else 0


def _target(app: Flask) -> Target:
    hooks: Any = app.extensions["ratelimit_mw"]

    def context_of(described: DescribedRequest) -> AbstractContextManager[object]:
        method, target = described.method_and_target
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in described.raw_headers]
        environ = {"REMOTE_ADDR": described.ip, "REMOTE_USER": described.user}
        return app.test_request_context(
            target,
            method=method,
            headers=headers,
            environ_overrides={name: value for name, value in environ.items() if value},
        )

    def find_steps(described: DescribedRequest) -> Sequence[Step]:
        rule, rules = request.url_rule, hooks.gate.rule_set
        if rule is None:
            return [Step(rules, described.request())]
        limits = hooks.limits_of(rule, described.method_and_target[0])
        return [Step(rules, described.request(rule.rule), limits)]

    return Target(hooks.gate.settings, hooks.gate.rule_set, find_steps, context_of, hooks.endpoint_rules)
