"""Limits on endpoints that want to know how a request was answered: the middleware around the app follows it for them.

It decides before a route is looked for, so it cannot know which requests those are. Where there are none such in this
process, it follows none.
"""

from typing import Any, Final
from weakref import WeakSet

from ratelimit_mw.notices import warn_rarely

_ALONE: Final = (
    "settle and count_status on endpoints need RateLimitMiddleware around the app, which sees the response; "
    "what was taken stays taken"
)


class _Inside:
    """Which middleware there are, and whether any is to follow all requests."""

    def __init__(self) -> None:
        self.needed = False
        self._around: Final[WeakSet[Any]] = WeakSet()

    def enrol(self, middleware: Any) -> bool:
        """Have this one told, by its `follow_all`. Whether it is to follow from the start."""
        self._around.add(middleware)
        return self.needed

    def tell(self) -> None:
        """There is a limit on an endpoint that needs it."""
        self.needed = True
        for middleware in list(self._around):
            middleware.follow_all()


INSIDE: Final = _Inside()


def warn_alone() -> None:
    """Nobody follows the response."""
    warn_rarely("endpoint", _ALONE)
