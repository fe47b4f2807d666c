"""The app config for `INSTALLED_APPS`, with which `manage.py check` verifies the settings."""

from django.apps import AppConfig


class RateLimitConfig(AppConfig):
    """The app `"ratelimit_mw.django"`. It has no models."""

    name = "ratelimit_mw.django"
    label = "ratelimit_mw"
