"""One override or switch, and its text in the store.

Trust: each program that can write to the store can set overrides, unless the settings have `key_secret`. Then the set
has a MAC over its version and all entries, so that entries can be neither added nor changed, and none can be played
back into a process that has seen a later set. A set without the right MAC is ignored.

Bounds: `MAX_ENTRIES` entries and `MAX_BYTES` bytes; every entry ends.
"""

import hmac
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal

from msgspec import DecodeError, Struct, json

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.log import warn_throttled

MAX_ENTRIES: Final = 10_000
MAX_BYTES: Final = 1_000_000  # of all entries, encoded
MAX_DURATION: Final = 366 * 86_400.0  # seconds
EVERYONE: Final = "everyone"  # the client of a switch
ADDRESS: Final = "ip="
KEY: Final = "key="
_INVALID: Final = "an entry of the store is ignored, clear it with `override clear` and set it again: %s: %s"

Action = Literal["exempt", "block", "limits", "off", "shadow"]
ACTIONS: Final[Sequence[Action]] = ("exempt", "block", "limits", "off", "shadow")


class Override(Struct, frozen=True, gc=False):
    """One entry. `rule`: the rule that it concerns; None for all.

    `who`: a part of the client's key, such as `user=bob` or `header:x-api-key=abc`; `ip=` and an address or network;
    `key=` and the client's key in the store; or `everyone`. `limits`: notation, for the action `limits`. `until`:
    seconds since 1970. `by`: who set it.
    """

    id: str
    rule: str | None
    who: str
    action: Action
    limits: str | None
    until: float
    note: str = ""
    by: str = ""


decode_override: Final = json.Decoder(Override).decode


def encode_overrides(overrides: Iterable[Override]) -> bytes:
    """Return the entries as text: one line of JSON for each."""
    return b"\n".join(map(json.encode, overrides))


def decode_overrides(text: bytes) -> Iterator[Override]:
    """Yield the entries of a text. Raises `ConfigError` for one that is none."""
    for line in text.split(b"\n") if text else ():
        try:
            yield decode_override(line)
        except DecodeError as error:
            raise ConfigError(f"overrides: an entry of the store cannot be read: {error}", code="RL-066") from None


def mac_of(secret: str, version: str, text: bytes) -> str:
    """Return the MAC of a text; empty without a secret."""
    if not secret:
        return ""
    return hmac.digest(secret.encode("utf-8", "surrogatepass"), f"{version}\n".encode() + text, "sha256").hex()


def is_authentic(secret: str, version: str, text: bytes, mac: str) -> bool:
    """Return whether a MAC is right; always true without a secret, and for an empty set without a version."""
    return not (secret and version) or hmac.compare_digest(mac_of(secret, version, text), mac)


def warn_invalid_override(override: str, error: Exception) -> None:
    """Log that an override has no effect, because this version of the package cannot use it."""
    warn_throttled("overrides", _INVALID, override, error, code="RL-250", value=override)
