"""The management command `ratelimit`."""
