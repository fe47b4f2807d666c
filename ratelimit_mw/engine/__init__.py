"""Decides calls and requests, waits, and settles what was charged."""
