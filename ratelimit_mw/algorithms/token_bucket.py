"""Token bucket: `burst` units at once, refilled at quota / window. The Lua implementation is `token_bucket.lua`."""

from typing import ClassVar

from ratelimit_mw.algorithms.bucket import LevelLimit


class TokenBucket(LevelLimit, frozen=True, kw_only=True):
    """Admits while there are enough tokens for the cost. Tokens return one by one, at quota / window.

    `TokenBucket(100, 60, burst=20)`: 20 at once, 100 per minute in the long run, at most 119 in any minute. With a
    `max_delay` of d seconds, up to d * quota / window more units are admitted, each delayed until its token returns.
    Decides like `gcra`, unless the clock steps back.
    """

    algorithm: ClassVar[str] = "token_bucket"
