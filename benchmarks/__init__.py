"""Measures how fast ratelimit_mw is, as ratios to peers measured in the same run: `python -m benchmarks`."""
