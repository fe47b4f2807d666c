"""Paths of requests that are built from their parts, without a server."""

from urllib.parse import unquote_to_bytes

from hypothesis import example, given
from hypothesis import strategies as st

from ratelimit_mw.http.targets import unquoted

PARTS = st.sampled_from([b"%", b"%%", b"%2", b"%2f", b"%2F", b"%zz", b"%ff", b"%0A", b"2f", b"/a", b"\xff", b"\n", b""])


@given(st.lists(PARTS).map(b"".join) | st.binary())
@example(b"/%%25%2")
def test_escapes_are_decoded_as_by_urllib(path: bytes) -> None:
    assert unquoted(path) == unquote_to_bytes(path)
