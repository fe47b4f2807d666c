"""Django 5.2 and later: the middleware, limits on views, and a throttle for Django REST framework.

`MIDDLEWARE = [..., "ratelimit_mw.django.RateLimitMiddleware"]` and `RATELIMIT_MW = {"limits": "100/minute"}`. With
`INSTALLED_APPS = [..., "ratelimit_mw.django"]`, `manage.py check` reports wrong settings and limits that nothing
enforces.
"""

from ratelimit_mw.core.errors import require

with require("django"):
    import django as _django  # noqa: F401  # first, so that the error names Django and not one of its modules

from ratelimit_mw.django import checks as _checks  # noqa: F401  # registers the system checks
from ratelimit_mw.django.endpoint_limits import exempt, limit
from ratelimit_mw.django.middleware import RateLimitMiddleware
from ratelimit_mw.django.throttle import Throttle

__all__ = ["RateLimitMiddleware", "Throttle", "exempt", "limit"]
