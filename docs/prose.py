"""Checks the prose of README and docs: `python docs/prose.py`, in `tox -e docs`. Returns 1 if there is a finding.

proselint checks each page without its code. The second list has words that our own guide to prose rules out. The docs
have at most `MOST` words, so that they can be read. `--count` prints the words of each page.
"""  # noqa: INP001  # no package

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
ALLOWED: Final = (  # a part of a finding that is not one
    ": typography.",  # straight quotes are what code has
    "'waitress'",  # a server
)
OWN: Final = re.compile(
    r"\b(whoever|whom|nobody|somebody|those of us|of which|in vain|anew|once more|by hand|side by side"
    r"|further (?:in|out)|(?:is|are|was|were) (?:told|asked|held back|heard)|hears?|stands? (?:on|in|for|beside)|bears?"
    r"|he|his|him|nothing comes of|found .*, allowed is)\b",
    re.IGNORECASE,
)
ON_PAGES: Final = re.compile(r"\bis (?:none|no [a-z]+)\b|(?:^|[.:] )(?:Who|What|Of what|Whose) [^?]*\.$")
MOST: Final = 26_000  # words of docs, without code blocks, generated parts, reference tables, and the page of messages
# Pages whose tables are for a look-up, and not read: an option, the equivalent of another limiter, a fault, a bound.
_LOOKED_UP: Final = re.compile(r"docs/(?:reference/|how-to/(?:come|migrate)-from-|explanation/(?:faults|security)\.)")
_ROW: Final = re.compile(r"^\|.*$", re.MULTILINE)
_UNCOUNTED: Final = re.compile(
    r"^(`{3,})[^\n]*\n.*?^\1$|^ {4}.*?$|"
    r"<!-- (?:table|figures|diagram|tests) .*?<!-- end -->|<!--.*?-->|(?<=\])\([^)]*\)",
    re.MULTILINE | re.DOTALL,
)
_CODE: Final = re.compile(r"^(`{3,})[^\n]*\n.*?^\1$|`[^`]*`|\]\([^)]*\)|<!--.*?-->|^ {4}.*?$", re.MULTILINE | re.DOTALL)
_PAUSED: Final = re.compile(r"^(#+ .*|\|.*|:::.*)$", re.MULTILINE)


def prose(text: str) -> str:
    """The page without code, link targets and comments, on the same lines."""
    without = _CODE.sub(lambda code: "…" + "\n" * code[0].count("\n"), text)
    return _PAUSED.sub(
        lambda line: f"{'' if line[0].startswith(':') else line[0].replace('|', ' / ')} …", without
    )  # no repetition from line to line


def words(text: str, page: str = "") -> int:
    """How many words a page has that someone wrote to be read."""
    text = _UNCOUNTED.sub(" ", text)
    return len(re.findall(r"\S*\w\S*", _ROW.sub("", text) if _LOOKED_UP.match(page) else text))


def findings(pages: dict[str, str]) -> Iterator[str]:
    """A line for each finding: page, line, reason."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for page, text in pages.items():
            (folder / page).parent.mkdir(parents=True, exist_ok=True)
            (folder / page).write_text(prose(text), "utf-8")
        command = [sys.executable, "-m", "proselint", "check", *pages]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603  # ours
        if done.stderr:  # 1 is also the exit code of Python without proselint
            yield done.stderr
        for line in done.stdout.splitlines():
            if not any(word in line for word in ALLOWED):
                yield line.replace(f"{folder.resolve()}/", "")
    for page, text in pages.items():
        for number, line in enumerate(prose(text).splitlines(), 1):
            for found in (*OWN.finditer(line), *ON_PAGES.finditer(line)):
                yield f"{page}:{number}: {found[0]!r}, which the guide to prose rules out"


def main(arguments: Sequence[str]) -> int:
    """Print the findings. Returns the exit code."""
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    pages = [path for path in files if "_build" not in path.parts]
    texts = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in pages}
    counts = {
        name: words(text, name)
        for name, text in texts.items()
        if name.startswith("docs/") and name != "docs/reference/messages.md"
    }
    if "--count" in arguments:
        sys.stdout.write("".join(f"{count:6} {name}\n" for name, count in counts.items()))
        sys.stdout.write(f"{sum(counts.values()):6} of at most {MOST}\n")
        return 0
    found = [*findings(texts)]
    if sum(counts.values()) > MOST:
        found.append(f"docs: {sum(counts.values())} words, at most {MOST}; `python docs/prose.py --count` shows where")
    sys.stdout.write("".join(f"{line}\n" for line in found))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
