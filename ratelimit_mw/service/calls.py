"""Reads the bodies of the service's JSON calls."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from msgspec import DecodeError, Struct, ValidationError, json

from ratelimit_mw.algorithms.concurrency import LIFETIME, RETRY, Concurrency
from ratelimit_mw.algorithms.notation import parse
from ratelimit_mw.core.errors import error_location
from ratelimit_mw.core.limit import MAX_EXACT_INT, Limit
from ratelimit_mw.engine.limits_of_calls import Key
from ratelimit_mw.http.networks import parse_address
from ratelimit_mw.http.scopes import scope_from_parts
from ratelimit_mw.service.answers import Rejected

_METHOD: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # a token of RFC 9110, such as M-SEARCH
_ORIGIN: Final = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")  # the beginning of a target in absolute form
_AT: Final = " - at `$"  # precedes the place in an error of msgspec

T = TypeVar("T")


class Slots(Struct, frozen=True, forbid_unknown_fields=True):
    """A concurrency limit, with the options of the settings."""

    concurrent: int
    slot_lifetime: float = LIFETIME  # seconds
    slot_retry: float = RETRY  # seconds
    name: str | None = None


LimitsText = str | Slots | list[str | Slots]


class RequestParts(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A request in parts. `POST /v1/check`: take what the rules require for it. Also `/v1/peek` and `/v1/reset`.

    `ip`: the socket's peer as the app would see it; None without one. `cost`: the units that the request takes, instead
    of the cost in the rules.
    """

    path: str
    method: str = "GET"
    ip: str | None = None
    user: str | None = None
    host: str | None = None
    headers: dict[str, str | list[str]] = {}
    cost: int | None = None

    def scope(self) -> dict[str, Any]:
        """Return the ASGI scope of this request. Raises `Rejected` for parts that a request cannot have."""
        if self.ip and parse_address(self.ip) is None:
            raise Rejected(400, f"ip: got {self.ip!r:.100}, expected an address such as 192.0.2.1, or null")
        if not self.path.startswith("/") and self.path != "*" and _ORIGIN.match(self.path) is None:
            raise Rejected(400, f"path: got {self.path!r:.100}, expected text that begins with '/', a URL, or '*'")
        if _METHOD.fullmatch(self.method) is None:
            raise Rejected(400, f"method: got {self.method!r:.100}, expected a method such as 'POST'")
        headers = [
            (_bytes(name.lower()), _bytes(value))
            for name, values in self.headers.items()
            for value in ([values] if isinstance(values, str) else values)
        ]
        if self.host is not None:
            headers = [(b"host", _bytes(self.host)), *(field for field in headers if field[0] != b"host")]
        client = (self.ip, 0) if self.ip else None
        return scope_from_parts(self.method.upper(), _bytes(self.path), headers, client, self.user)


class HitCall(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/hit`: take units of some limits for a key. Also `/v1/peek` and `/v1/reset` of these limits."""

    limits: LimitsText
    key: Key
    cost: int | None = None


class SettleCall(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/settle`: correct what a key took, or release or renew its slots. One of the last three is required."""

    limits: LimitsText
    key: Key
    delta: int | None = None
    release: str | None = None
    renew: str | None = None


def read_call(body: bytes, kind: type[T]) -> T:
    """Return a call of this kind. For any other body, raises `Rejected` with the place of the mistake."""
    try:
        return json.decode(body, type=kind)
    except ValidationError as error:
        text, at, place = str(error).partition(_AT)
        place = place.removeprefix(".").removesuffix("`") if at else ""
        raise Rejected(400, f"{place or 'body'}: {text}") from None
    except (DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Rejected(400, f"body: invalid JSON: {error}") from None


def read_either(body: bytes) -> "HitCall | RequestParts":
    """Return a call that names its limits, or one that describes a request, depending on its fields."""
    try:
        fields = json.decode(body, type=Mapping[str, Any])
    except (DecodeError, RecursionError, UnicodeDecodeError):
        fields = {}  # `read_call` reports it
    return read_call(body, RequestParts) if "path" in fields else read_call(body, HitCall)


def limits_of(call: Any) -> Sequence[str | Limit]:
    """Return the limits of a call as a `Limiter` takes them. Raises `ConfigError` for invalid ones."""
    if isinstance(call.limits, str):
        with error_location("limits"):
            return parse(call.limits)
    items = [call.limits] if isinstance(call.limits, Slots) else call.limits
    return [item if isinstance(item, str) else _slots(f"limits[{index}]", item) for index, item in enumerate(items)]


def cost_of(call: HitCall | RequestParts, default: int) -> int:
    """Return the cost of a call. Raises `Rejected` if it is not a whole number of units."""
    cost = default if call.cost is None else call.cost
    if not 0 <= cost < MAX_EXACT_INT:
        raise Rejected(400, f"cost: got {cost}, expected a whole number from 0 to {MAX_EXACT_INT - 1}")
    return cost


def _slots(place: str, slots: Slots) -> Limit:
    with error_location(place):
        return Concurrency(slots.concurrent, slots.slot_lifetime, name=slots.name, retry=slots.slot_retry)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
