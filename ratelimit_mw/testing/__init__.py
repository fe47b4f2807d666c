"""Help for tests: a clock told by hand, and a store that records what it was asked."""

from ratelimit_mw.testing.clock import Clock
from ratelimit_mw.testing.recording import RecordingStore

__all__ = ["Clock", "RecordingStore"]
