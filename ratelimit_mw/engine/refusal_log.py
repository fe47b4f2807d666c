"""Log lines about refused requests: at level INFO, and at most ten a second."""

import logging
import time
from itertools import count
from typing import Final

from ratelimit_mw.core.errors import with_code
from ratelimit_mw.core.identity import identity_hash
from ratelimit_mw.core.verdict import Verdict

logger = logging.getLogger("ratelimit_mw.refusals")  # public: documented for log configurations

MAX_PER_SECOND: Final = 10  # lines
_MESSAGE: Final = "ratelimit_mw: refused by rule %s%s%s"


class _Second:
    """Counts the refusals of one second. Has no lock, because a forked child could inherit a locked one."""

    __slots__ = ("_number", "at")

    def __init__(self, at: int) -> None:
        self.at: Final = at
        self._number = count()

    def next(self) -> int:
        return next(self._number)


_second = _Second(0)


def log_refusal(verdict: Verdict, secret: str) -> None:
    """Log a refused request, unless this process has logged ten in this second. A later line counts the omitted ones.

    The key is logged as a hash, even with `plain_keys`. `secret`: the setting `key_secret`.
    """
    if not logger.isEnabledFor(logging.INFO):
        return
    global _second  # noqa: PLW0603  # one per process
    current, now, left_out = _second, int(time.monotonic()), 0
    if current.at != now:
        left_out = max(current.next() - MAX_PER_SECOND, 0)
        current = _second = _Second(now)
    if current.next() >= MAX_PER_SECOND:
        return
    binding = verdict.binding
    limit, key, details = None, None, ""
    if binding is not None:
        charge = verdict.charges[binding]
        key = _hashed_identity(charge.key, secret)
        limit = verdict.policies[binding].name if binding < len(verdict.policies) else None
        details = f", limit {limit}, key {key}; retry after {verdict.retry_after:.3f} s"
    omitted = f"; earlier refusals that were not logged: {left_out}" if left_out else ""
    fields = {
        "ratelimit_rule": verdict.rule,
        "ratelimit_limit": limit,
        "ratelimit_key": key,
        "ratelimit_retry_after": verdict.retry_after,
        "ratelimit_source": verdict.source,
        "ratelimit_not_logged": left_out,
    }
    logger.info(with_code(_MESSAGE, "RL-233"), verdict.rule, details, omitted, extra=fields)


def _hashed_identity(key: str, secret: str) -> str:
    """Return the hash in a key of the store; if `plain_keys` left the identity readable, hash it."""
    identity = key[1:].partition("}")[0]
    is_readable = "=" in identity  # the form of an encoded identity is kind=value
    return identity_hash(secret)(identity) if is_readable else identity
