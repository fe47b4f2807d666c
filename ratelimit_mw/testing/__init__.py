"""Tools for tests: control over the time of all stores, a manual clock, and a store that records its calls."""

from ratelimit_mw.testing.clock import Clock
from ratelimit_mw.testing.control import Control, freeze
from ratelimit_mw.testing.recording import RecordingStore

__all__ = ["Clock", "Control", "RecordingStore", "freeze"]
