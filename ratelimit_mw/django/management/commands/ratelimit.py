"""`manage.py ratelimit`: the commands of `ratelimit_mw.admin` for a project with `ratelimit_mw.django` installed."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from types import SimpleNamespace
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.urls import Resolver404, get_resolver, resolve
from msgspec.structs import replace

from ratelimit_mw.admin.commands import add_commands
from ratelimit_mw.admin.target import DescribedRequest, Step, Target
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.django.endpoint_limits import SETTING_NAME, compile_limits, limits_by_level
from ratelimit_mw.django.middleware import METHODS, RateLimitMiddleware
from ratelimit_mw.django.request import DjangoRequest
from ratelimit_mw.django.throttle import throttle_rules, views_of
from ratelimit_mw.rules.rule_table import CompiledRule


class Command(BaseCommand):
    """Shows which clients the settings, views and throttles of this project limit, resets them, and changes limits."""

    help = "Show who is limited, let them in again, and change limits: peek, reset, keys, top, tail, override, switch."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the commands."""
        add_commands(parser.add_subparsers(required=True, metavar="COMMAND"), _target, has_file=False)

    def handle(self, *_: Any, **options: Any) -> None:
        """Run a command. Exits with its code, unless that is 0."""
        out, err = options.get("stdout") or sys.stdout, options.get("stderr") or sys.stderr
        with redirect_stdout(out), redirect_stderr(err):
            code = options["run"](Namespace(**options))
        if code:
            sys.exit(code)


def _target(_: Namespace) -> Target:
    """Return the settings of the project, and a function that finds the view of a request. Raises `ConfigError`."""
    try:
        middleware = RateLimitMiddleware(_respond)
    except ConfigError:  # under ASGI a callable may be async
        if getattr(settings, SETTING_NAME, None) is None:
            raise
        middleware = RateLimitMiddleware(_respond_async)

    def find_steps(described: DescribedRequest) -> Iterator[Step]:
        request, inner = _request(described), middleware.gate.nested
        yield Step(middleware.gate.rule_set, DjangoRequest(request, None), middleware.limits_of(request)[0])
        match, nested = request.resolver_match, Step(inner.rule_set, DjangoRequest(request, None))
        if match is not None and nested.rules.match(nested.request) is not None:  # else no throttle limits the client
            yield replace(nested, endpoint_rules=throttle_rules(match.func, inner))

    def find_endpoint_rules() -> Iterator[CompiledRule]:
        rules, inner = middleware.gate.rule_set, middleware.gate.nested
        for view, route in views_of(get_resolver().url_patterns):
            for method in METHODS:
                yield from compile_limits(rules, limits_by_level(view, method, route))
            yield from throttle_rules(view, inner)

    return Target(
        middleware.gate.settings, middleware.gate.rule_set, find_steps, find_endpoint_rules=find_endpoint_rules
    )


def _request(described: DescribedRequest) -> HttpRequest:
    """Return the request as Django has it when its view is known. Its user has a name, and nothing of a database."""
    method, target = described.method_and_target
    headers: dict[str, str] = {}
    for raw_name, value in described.raw_headers:  # several lines are joined, as by a server
        name = raw_name.decode("latin-1")
        headers[name] = ",".join(filter(None, (headers.get(name), value.decode("latin-1"))))
    request = RequestFactory(REMOTE_ADDR=described.ip or "").generic(method, target, headers=headers)
    user, known = described.user or None, bool(described.user)
    request.user = SimpleNamespace(is_authenticated=known, is_anonymous=not known, pk=user, username=user)  # type: ignore[assignment]  # not of the database
    with suppress(Resolver404):
        request.resolver_match = resolve(request.path_info)
    return request


def _respond(_: HttpRequest) -> HttpResponse:
    return HttpResponse()


async def _respond_async(_: HttpRequest) -> HttpResponse:
    return HttpResponse()
