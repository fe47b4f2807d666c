"""Writes the states of algorithms as bytes, and reads them.

States are msgpack. A state class that has the methods `pack` and `unpack` writes itself.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, get_args, get_type_hints

from msgspec import MsgspecError
from msgspec.msgpack import Decoder, Encoder

from ratelimit_mw.algorithms.notation import limit_of_notation
from ratelimit_mw.algorithms.takeover import TakingOver, Written
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import Limit, State
from ratelimit_mw.core.log import warn_throttled

# The version of all that a row holds: its key, its mark and its state. Each version has tables of its own, so that
# processes of two versions of this package do not overwrite each other's states.
FORMAT: Final = 2
_encode: Final = Encoder().encode
_MAX_CODECS: Final = 1000  # classes of limits; an app that creates more of them has codecs made again


class Codec(NamedTuple):
    """Writes and reads the states of one algorithm. Both functions may raise any error."""

    encode: Callable[[State], bytes]
    decode: Callable[[bytes], State]


class Codecs:
    """The codecs of the algorithms, by the class of the limit.

    The annotation of the parameter `state` of `expires` names the type of the states. Without an annotation they have
    to be numbers, text, lists and dicts. `encode` raises `ConfigError` if the first state of an algorithm would not be
    read as it was written.
    """

    def __init__(self) -> None:
        self._by_class: dict[type[Limit], Codec] = {}

    def of(self, limit: Limit) -> Codec:
        """Return the codec of a limit's states."""
        codec = self._by_class.get(type(limit))
        if codec is None:
            if len(self._by_class) >= _MAX_CODECS:
                self._by_class.clear()
            codec = self._by_class[type(limit)] = self._codec_of(type(limit))
        return codec

    def _codec_of(self, algorithm: type[Limit]) -> Codec:
        if issubclass(algorithm, TakingOver):
            return Codec(self._encode_written, self._decode_written)
        try:
            annotation = get_type_hints(algorithm.expires).get("state", Any)
        except (NameError, TypeError):  # the annotation names something that cannot be imported
            annotation = Any
        for kind in (annotation, *get_args(annotation)):
            if hasattr(kind, "pack") and hasattr(kind, "unpack"):
                return Codec(kind.pack, kind.unpack)
        try:
            decode = Decoder(annotation).decode
        except TypeError:
            raise _unsupported(algorithm) from None

        def encode_and_check(state: State) -> bytes:
            try:
                written = _encode(state)
                same = decode(written) == state
            except (TypeError, OverflowError, MsgspecError):
                same = False
            if not same:
                raise _unsupported(algorithm)
            self._by_class[algorithm] = Codec(_encode, decode)
            return written

        return Codec(encode_and_check, decode)

    def _encode_written(self, written: Written) -> bytes:
        """Return the notation of the limit that wrote a state, a zero byte, and the state."""
        limit, state = written
        return limit.notation.encode() + b"\0" + self.of(limit).encode(state)

    def _decode_written(self, text: bytes) -> Written:
        notation, _, state = text.partition(b"\0")
        limit = limit_of_notation(notation.decode())
        return Written(limit, self.of(limit).decode(state))


def read_state(codec: Codec, written: bytes) -> State:
    """Return the state of a row, whose first byte is the mark; None for bytes that cannot be read."""
    try:
        return codec.decode(written[1:])
    except (MsgspecError, ValueError) as error:
        warn_throttled(
            "SQLiteStore", "a state cannot be read, and starts again: %s", type(error).__name__, code="RL-240"
        )
        return None


def _unsupported(algorithm: type[Limit]) -> ConfigError:
    return ConfigError(
        f"{algorithm.__name__}: its states cannot be written to a file; annotate the parameter `state` of expires() "
        "with their type, one that msgspec supports",
        code="RL-062",
    )
