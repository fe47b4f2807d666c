"""ASGI and WSGI middleware that limits how often a client may call a web app.

PYTEST_DONT_REWRITE: pytest would rewrite this package for its fixture, and warn if it was imported before pytest runs.
"""

from ratelimit_mw.algorithms.calendar_window import CalendarWindow
from ratelimit_mw.algorithms.concurrency import Concurrency
from ratelimit_mw.algorithms.fixed_window import FixedWindow
from ratelimit_mw.algorithms.gcra import GCRA
from ratelimit_mw.algorithms.leaky_bucket import LeakyBucket
from ratelimit_mw.algorithms.notation import parse
from ratelimit_mw.algorithms.sliding_window_counter import SlidingWindowCounter
from ratelimit_mw.algorithms.sliding_window_log import SlidingWindowLog
from ratelimit_mw.algorithms.smooth import Smooth
from ratelimit_mw.algorithms.token_bucket import TokenBucket
from ratelimit_mw.core.errors import ConfigError, RateLimitError, StoreError
from ratelimit_mw.core.limit import Charge, Decision, Limit
from ratelimit_mw.core.verdict import RateLimited, Verdict
from ratelimit_mw.engine.limiter import AsyncLimiter, Limiter
from ratelimit_mw.stores.memory import MemoryStore

__version__ = "0.3.0"  # read by the build

__all__ = [
    "GCRA",
    "AsyncLimiter",
    "CalendarWindow",
    "Charge",
    "Concurrency",
    "ConfigError",
    "Decision",
    "FixedWindow",
    "LeakyBucket",
    "Limit",
    "Limiter",
    "MemoryStore",
    "RateLimitError",
    "RateLimited",
    "SlidingWindowCounter",
    "SlidingWindowLog",
    "Smooth",
    "StoreError",
    "TokenBucket",
    "Verdict",
    "parse",
]
