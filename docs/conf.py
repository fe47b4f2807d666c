"""Sphinx: `tox -e docs`."""

from typing import Any, ClassVar

from pygments.lexers import LuaLexer
from sphinx.application import Sphinx

project = "ratelimit_mw"
author = "The ratelimit_mw authors"
copyright = "2026, the ratelimit_mw authors"  # noqa: A001  # Sphinx reads this name
extensions = ["myst_parser", "sphinxcontrib.mermaid"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "ratelimit_mw"
html_static_path = ["_static"]
html_css_files = ["twins.css"]
myst_heading_anchors = 3
myst_fence_as_directive = ["mermaid"]  # as on GitHub; without JavaScript a page shows the text of the diagram


class Lua51(LuaLexer):
    """The Lua of Redis. Attributes came later, and Pygments takes `a < b and c > d` for one."""

    tokens: ClassVar[dict[str, Any]] = {"base": [rule for rule in LuaLexer.tokens["base"] if "<.+?>" not in str(rule)]}


def setup(app: Sphinx) -> None:
    """Sphinx calls it when it starts."""
    app.add_lexer("lua", Lua51)
