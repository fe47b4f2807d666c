"""Tests what Django's middleware reads of a request that its method, path and address decide."""

from typing import Any

import pytest
from django.test import AsyncRequestFactory, RequestFactory

from ratelimit_mw.django.request import enter
from ratelimit_mw.rules.rule_set import RuleSet
from ratelimit_mw.settings import Settings

RULES = [{"path": "/a", "methods": ["POST"], "limits": "1/minute"}, {"path": "/items.json", "limits": "2/minute"}]
FACTORIES = [RequestFactory(), AsyncRequestFactory()]
IDS = ["wsgi", "asgi"]


def entered(request: Any, **settings: Any) -> tuple[list[int], str | None]:
    """Return the quotas that a request is charged to, and its client."""
    way, charges, client = enter(RuleSet(Settings(limits="9/minute", rules=RULES, **settings)), request, ())
    assert way is not None
    return [charge.limit.quota for charge in charges or ()], client


@pytest.mark.parametrize("factory", FACTORIES, ids=IDS)
def test_the_method_is_the_one_that_outer_middleware_has_set(factory: Any) -> None:
    request = factory.get("/a")
    assert entered(request) == ([9], "127.0.0.1")
    request.method = "POST"
    assert entered(request) == ([1], "127.0.0.1")


@pytest.mark.parametrize("factory", FACTORIES, ids=IDS)
def test_a_client_behind_a_proxy_is_found(factory: Any) -> None:
    request = factory.get("/a", headers={"X-Forwarded-For": "192.0.2.7, 10.0.0.1"})
    assert entered(request, trusted_proxies=["127.0.0.1", "10.0.0.0/8"]) == ([9], "192.0.2.7")


@pytest.mark.parametrize("factory", FACTORIES, ids=IDS)
def test_a_path_with_a_dot_but_no_format_suffix_is_decided(factory: Any) -> None:
    assert entered(factory.get("/items.json")) == ([2], "127.0.0.1")
