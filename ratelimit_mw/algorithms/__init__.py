"""The algorithms: one Python file and one Lua file of the same stem each. This table is all that knows of them."""

from typing import Final

from ratelimit_mw.algorithms.sliding_window_counter import SlidingWindowCounter
from ratelimit_mw.algorithms.token_bucket import TokenBucket
from ratelimit_mw.limit import Limit

ALGORITHMS: Final[dict[str, type[Limit]]] = {
    "sliding_window_counter": SlidingWindowCounter,
    "token_bucket": TokenBucket,
}
DEFAULT: Final = SlidingWindowCounter  # what the notation means when it does not say `using`
