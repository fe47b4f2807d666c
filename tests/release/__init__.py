"""Builds the distributions, checks them, and installs the wheel with each extra: `tox -e release`."""
