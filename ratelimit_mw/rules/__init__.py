"""Compiled rules: which limits apply to a request."""

from ratelimit_mw.settings.rule import Rule

__all__ = ["Rule"]
