"""The decision service: the limits of one settings file for proxies, and for programs in any language."""

from pathlib import Path

from ratelimit_mw.core.validation import check_arguments
from ratelimit_mw.service.app import Service
from ratelimit_mw.service.served_settings import served_settings
from ratelimit_mw.settings import Settings, SettingsValue, is_settings_callable
from ratelimit_mw.settings.options import Options

__all__ = ["service"]


@check_arguments(elsewhere=dict.fromkeys(Options.__annotations__, "into `settings`, a mapping such as {'limits': ...}"))
def service(settings: SettingsValue | Path, *, secret: str = "") -> Service:
    """Return an ASGI app that decides the requests of other servers.

    For example `app = service("limits.toml")`. `settings`: a `Settings` object, a mapping, the name of a TOML or JSON
    file, or a callable that returns settings. `secret`: the text that callers must send in the header
    `X-RateLimit-Secret`. Without a secret, only callers on loopback and unix sockets get an answer. Raises
    `ConfigError` for invalid settings, and for those that the service cannot apply, because it does not see responses.
    """
    if isinstance(settings, Path) or (isinstance(settings, str) and not is_settings_callable(settings)):
        loaded = Settings.load(settings)
    else:
        loaded = Settings.of(settings, {})
    return Service(loaded.pass_origin_to(served_settings(loaded), served_settings), secret)
