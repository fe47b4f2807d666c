"""Limits on endpoints that want to know how a request was answered: the middleware around the app follows it for them.

It decides before a route is looked for, so it cannot know which requests those are. Where there are none such in this
process, it follows none.
"""

from typing import Any, Final
from weakref import WeakSet

from ratelimit_mw.notices import warn_throttled

_ALONE: Final = (
    "settle and count_status on endpoints need RateLimitMiddleware around the app, which sees the response; "
    "what was taken stays taken"
)


class _MiddlewareRegistry:
    """Which middleware there are, and whether any is to follow all requests."""

    def __init__(self) -> None:
        self.tracking_required = False
        self._middleware: Final[WeakSet[Any]] = WeakSet()

    def register(self, middleware: Any) -> bool:
        """Have this one told, by its `track_all`. Whether it is to follow from the start."""
        self._middleware.add(middleware)
        return self.tracking_required

    def require_tracking(self) -> None:
        """There is a limit on an endpoint that needs it."""
        self.tracking_required = True
        for middleware in list(self._middleware):
            middleware.track_all()


MIDDLEWARE_REGISTRY: Final = _MiddlewareRegistry()


def warn_not_tracked() -> None:
    """Nobody follows the response."""
    warn_throttled("endpoint", _ALONE)
