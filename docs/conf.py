"""Sphinx: `tox -e docs`. The build and the pages need no network."""

import re
import tomllib
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from pygments.lexers import LuaLexer, TextLexer
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

project = "ratelimit_mw"
author = "The ratelimit_mw authors"
copyright = "2026, the ratelimit_mw authors"  # noqa: A001  # Sphinx reads this name
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_design", "sphinx_copybutton", "sphinxext.opengraph"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "ratelimit_mw"
html_favicon = "_static/icon.svg"
html_static_path = ["_static"]
html_css_files = ["site.css", "twins.css"]
html_js_files = ["tables.js"]
html_search_scorer = str(Path(__file__).with_name("search.js"))
search_words = tomllib.loads(Path(__file__).with_name("search.toml").read_text("utf-8"))
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
copybutton_exclude = ".linenos, .gp, .go"  # prompts and outputs of a session are not copied
ogp_site_url = ""  # the site has no public address yet
ogp_social_cards = {"enable": False}  # they would need matplotlib

autodoc_class_signature = "separated"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
default_role = "code"  # docstrings have single backticks around code
_CODE = re.compile(r"(RL-\d{3}): ")  # of a message, in a heading
_OUTSIDE_OF_CODE = re.compile(r"(`[^`]*`)|([*|\\]|_\b)")


def escape_docstring(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:  # noqa: ARG001
    """Keep reStructuredText from reading markup into a docstring's plain text."""
    shown = [line for line in lines if "PYTEST_DONT_REWRITE" not in line]  # for pytest alone
    lines[:] = [_OUTSIDE_OF_CODE.sub(lambda found: found[1] or f"\\{found[2]}", line) for line in shown]


class Lua51(LuaLexer):
    """The Lua of Redis. Attributes came later, and Pygments takes `a < b and c > d` for one."""

    tokens: ClassVar[dict[str, Any]] = {"base": [rule for rule in LuaLexer.tokens["base"] if "<.+?>" not in str(rule)]}


class SearchWords(SphinxTransform):
    """Adds the index entries of a page in search.toml, and their words as keywords, which the search reads.

    The codes of messages are entries, too, with the place of their headings.
    """

    default_priority = 400  # before Sphinx collects the entries

    def apply(self, **_: object) -> None:
        """Sphinx calls it with each page."""
        words = self.config.search_words.get(self.env.docname, ())
        keywords = ", ".join(sorted({word for entry in words for word in re.findall(r"\w+", entry)}))
        entries = [("single", entry, "", "main", None) for entry in words]
        titles = ((_CODE.match(title.astext()), title.parent["ids"]) for title in self.document.findall(nodes.title))
        entries += [("single", code[1], ids[0], "main", None) for code, ids in titles if code]
        self.document.insert(0, [nodes.meta(name="keywords", content=keywords), addnodes.index(entries=entries)])


def add_diagrams(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:  # noqa: ARG001
    """Load mermaid, which is large, only on pages with a diagram."""
    if "highlight-mermaid" in context.get("body", ""):
        app.add_js_file("vendor/mermaid.tiny.js", loading_method="defer")
        app.add_js_file("diagrams.js", loading_method="defer")


def setup(app: Sphinx) -> None:
    """Sphinx calls it when it starts."""
    app.add_config_value("search_words", {}, "env", types=(dict,))
    app.add_transform(SearchWords)
    app.add_lexer("lua", Lua51)
    app.connect("autodoc-process-docstring", escape_docstring)
    app.add_lexer("mermaid", TextLexer)
    app.add_lexer("haproxy", TextLexer)
    app.connect("html-page-context", add_diagrams)
