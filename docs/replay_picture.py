"""The picture of a replay's report: `python docs/replay_picture.py` draws it in Chromium, from the log that tests have.

The file keeps a digest of the page that it shows. With `--check` nothing is drawn: the digest is compared with the
page of today.
"""  # noqa: INP001  # no package

import struct
import sys
import zlib
from base64 import b64decode
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # which have the log and a browser
from replay.day import report_of_the_day

PICTURE: Final = Path(__file__).resolve().parent / "images" / "replay-report.png"
RENEW: Final = "python docs/replay_picture.py"
WIDTH: Final = 985
SHOWN: Final = "document.querySelector('section').getBoundingClientRect().bottom"  # all above it, and the first rule
MARGIN: Final = 10
KEYWORD: Final = b"Digest\0"
TEXT: Final = b"tEXt"
SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"


def chunks(image: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the kind and the content of each chunk of a PNG."""
    at = len(SIGNATURE)
    while at < len(image):
        (length,) = struct.unpack_from(">I", image, at)
        yield image[at + 4 : at + 8], image[at + 8 : at + 8 + length]
        at += 12 + length


def with_digest(image: bytes, digest: str) -> bytes:
    """Return a PNG that has a digest."""
    content = TEXT + KEYWORD + digest.encode()
    chunk = struct.pack(">I", len(content) - 4) + content + struct.pack(">I", zlib.crc32(content))
    end = image.rindex(b"IEND") - 4
    return image[:end] + chunk + image[end:]


def digest_of(image: bytes) -> str:
    """Return the digest that a PNG has; empty without one."""
    found = [content for kind, content in chunks(image) if kind == TEXT and content.startswith(KEYWORD)]
    return found[0].removeprefix(KEYWORD).decode() if found else ""


def draw(page: str, folder: Path) -> bytes:
    """Return a picture of the top of a page."""
    from browser.devtools import browser  # noqa: PLC0415  # it needs websockets, and a check does not

    (path := folder / "report.html").write_text(page, "utf-8")
    with browser(folder) as tab:
        tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
        tab.call("Emulation.setScrollbarsHidden", hidden=True)
        tab.open(path.as_uri(), WIDTH)
        tab.until("document.querySelectorAll('canvas').length >= 8")
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": round(tab.value(SHOWN)) + MARGIN, "scale": 1}
        return b64decode(tab.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"])


def main(arguments: Sequence[str]) -> int:
    """Draw the picture, or with `--check` compare its digest. Returns the exit code."""
    with TemporaryDirectory() as name:
        page = report_of_the_day(Path(name))
        digest = sha256(page.encode()).hexdigest()
        if "--check" not in arguments:
            PICTURE.write_bytes(with_digest(draw(page, Path(name)), digest))
            return 0
    if stale := digest_of(PICTURE.read_bytes()) != digest:
        sys.stdout.write(f"{PICTURE.name} is stale. This renews it: {RENEW}\n")
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
