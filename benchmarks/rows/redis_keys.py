"""Rows of the Redis store for threads with many keys, and with refused takes."""

from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any, Final

from benchmarks.lab import Lab, package
from benchmarks.ours.memory import many, one
from benchmarks.rows.redis import sync_store
from benchmarks.runner import Contender, Race, Row, Setup
from benchmarks.takes import hits, takes
from ratelimit_mw import Charge, TokenBucket

_DAY: Final = 24 * 3600.0  # seconds
_PLENTY: Final = TokenBucket(10**9, _DAY)
_ONE: Final = TokenBucket(1, _DAY)


def _ours(limit: TokenBucket, of: Callable[[Lab], Sequence[str]]) -> Setup:
    """Set up takes of these keys, round-robin. Each key is taken from once before the run."""

    def setup(lab: Lab) -> Contender:
        store, charges = sync_store(lab), [Charge(f"many:{key}", limit) for key in of(lab)]
        assert all(store.take((charge,))[0].allowed for charge in charges)
        return takes(store, *charges)

    return setup


def _minimal(limit: TokenBucket, of: Callable[[Lab], Sequence[str]]) -> Setup:
    """Set up the same with the smallest script for such a limit."""
    arguments = (str(limit.window_us / limit.quota), str(limit.window_us))

    def setup(lab: Lab) -> Contender:
        client: Any = lab.closing.enter_context(package("redis").Redis.from_url(lab.redis_url()))
        sha = client.script_load((files("benchmarks.rows") / "minimal_gcra.lua").read_text("utf-8"))

        def hit(key: str) -> bool:
            return bool(client.evalsha(sha, 1, f"minimal:{limit.bucket}:{key}", *arguments)[0])

        keys = of(lab)
        assert all(map(hit, keys))
        return hits(hit, [(key,) for key in keys])

    return setup


ROWS: Final[Sequence[Row]] = [
    Race(
        name=f"redis-sync-{name}",
        what=f"{what}, token bucket / bare EVALSHA, minimal GCRA",
        ours=_ours(limit, of),
        peer=_minimal(limit, of),
        calls=300,
        admits=limit is _PLENTY,
    )
    for name, what, limit, of in (
        ("refused", "refused to one key", _ONE, one),
        ("keys", "one take of 100,000 keys in turn", _PLENTY, many),
        ("keys-refused", "refused to 100,000 keys in turn", _ONE, many),
    )
]
