"""What `INSTALLED_APPS` names, so that `manage.py check` looks at our settings before it runs."""

from django.apps import AppConfig


class RateLimitConfig(AppConfig):
    """`"ratelimit_mw.django"` in `INSTALLED_APPS`. It has no models."""

    name = "ratelimit_mw.django"
    label = "ratelimit_mw"
