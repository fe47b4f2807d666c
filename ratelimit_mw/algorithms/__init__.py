"""Tables of the algorithms. Each has a Python file and a Lua file of the same stem."""

from typing import Final

from ratelimit_mw.algorithms.ban import Ban
from ratelimit_mw.algorithms.calendar_window import CalendarWindow
from ratelimit_mw.algorithms.concurrency import Concurrency
from ratelimit_mw.algorithms.fixed_window import FixedWindow
from ratelimit_mw.algorithms.gcra import GCRA
from ratelimit_mw.algorithms.leaky_bucket import LeakyBucket
from ratelimit_mw.algorithms.sliding_window_counter import SlidingWindowCounter
from ratelimit_mw.algorithms.sliding_window_log import SlidingWindowLog
from ratelimit_mw.algorithms.smooth import Smooth
from ratelimit_mw.algorithms.token_bucket import TokenBucket
from ratelimit_mw.core.limit import Limit

ALGORITHMS: Final[dict[str, type[Limit]]] = {
    "fixed_window": FixedWindow,
    "sliding_window_counter": SlidingWindowCounter,
    "sliding_window_log": SlidingWindowLog,
    "token_bucket": TokenBucket,
    "gcra": GCRA,
    "leaky_bucket": LeakyBucket,
    "smooth": Smooth,
    "calendar_window": CalendarWindow,
}
SCRIPTED: Final[dict[str, type[Limit]]] = {  # also those that the notation cannot express, because they are not rates
    **ALGORITHMS,
    "ban": Ban,
    "concurrency": Concurrency,
}
DEFAULT: Final = SlidingWindowCounter  # the algorithm of a notation without `using`
