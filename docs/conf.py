"""Sphinx: `tox -e docs`."""

project = "ratelimit_mw"
author = "The ratelimit_mw authors"
copyright = "2026, the ratelimit_mw authors"  # noqa: A001  # Sphinx reads this name
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "ratelimit_mw"
myst_heading_anchors = 3
