"""Limits that are attached to endpoints in code. The framework integrations find and enforce them."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from itertools import count
from typing import Any, ClassVar, Final, Self, TypeVar, Unpack
from weakref import WeakSet

from ratelimit_mw.core.errors import ConfigError, ConfigTypeError
from ratelimit_mw.core.validation import RESERVED_NAMES, build_checked
from ratelimit_mw.http.keys import key_or_placeholder
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.compiled import LimitSet, check_no_async_callables
from ratelimit_mw.settings.limits import check_buckets, has_concurrency
from ratelimit_mw.settings.options import Options
from ratelimit_mw.settings.rule import LIMIT_TABLE_OPTIONS, EndpointLimitOptions, LimitsValue, Rule, RuleOptions

Endpoint = TypeVar("Endpoint")  # a function, a class, or a framework's group of these

_PREFIX: Final = "__ratelimit_mw_"  # one attribute per limit, so that decorators that merge attributes keep all limits
_sequence: Final = count()
_EVERYWHERE: Final = "/{rest:path}"
_WRAPPED_ATTRIBUTES: Final = ("__wrapped__",)  # where decorators keep the function that they wrap
# also where views of Flask and Django keep their class, which other views may share
_INNER_ATTRIBUTES: Final = (*_WRAPPED_ATTRIBUTES, "view_class")
_MAX_NAME_LENGTH: Final = 64  # characters
_MAX_DEPTH: Final = 50  # decorators on one endpoint
_VALID_NAME: Final = re.compile(r"[A-Za-z0-9_.]{1,64}")  # texts that are used as names unchanged
_NO_LIMITS: Final = Settings(limits=[])
_OPTIONS: Final = {"limits", *EndpointLimitOptions.__annotations__}
WRAPPED: Final = WeakSet[Any]()  # functions that `limit` has wrapped; only the wrapper enforces the limit


class EndpointLimit:
    """A rule without a path, for one endpoint. Raises `ConfigError` for an invalid rule, and for tiers without `tier`.

    `limits` and `options`: as in a rule of the settings. An option that is not given has its value from the settings.
    `version`: changes with each `attach`, so that caches of endpoint limits are rebuilt.
    """

    __slots__ = ("__weakref__", "rule")

    version: ClassVar[int] = -1
    elsewhere: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(Options.__annotations__.keys() - _OPTIONS, "into the settings of the middleware"),
        **dict.fromkeys(RuleOptions.__annotations__.keys() - _OPTIONS, "into a rule of the middleware's settings"),
        "path": "into the route: the limit applies where its endpoint is routed",
        **LIMIT_TABLE_OPTIONS,
    }

    def __init__(self, limits: LimitsValue, **options: Unpack[EndpointLimitOptions]) -> None:
        given = {**options, "limits": limits}
        self.rule: Final[Rule] = build_checked(_rule, given, _DecoratorOptions, self.elsewhere)
        specs = self.rule.resolve_limits(None, None)
        check_buckets("limits", specs, key_or_placeholder("user | ip" if self.rule.key is None else self.rule.key))

    @classmethod
    def exemption(cls) -> Self:
        """Return the endpoint limit of `@exempt`, which skips the default limits."""
        endpoint_limit = cls.__new__(cls)
        endpoint_limit.rule = Rule(path=_EVERYWHERE, exempt=True)  # type: ignore[misc]  # its constructor
        return endpoint_limit

    def reject_concurrency(self) -> Self:
        """Return self; raise `ConfigError` if it has slots. For endpoints without a tracked end of the response."""
        if self.rule.concurrent or has_concurrency(self.rule.resolve_limits(None, None)):
            raise ConfigError(
                "concurrent: the end of a response is not observed here; set it in a rule of the settings for this "
                "path",
                code="RL-021",
            )
        return self

    def reject_async_callables(self) -> Self:
        """Return self; raise `ConfigError` if it has an async callable. For endpoints where nothing can be awaited."""
        check_no_async_callables([LimitSet(self.rule.resolve_limits(None, None), "", _NO_LIMITS, self.rule)])
        return self

    def attach(self, endpoint: Endpoint, *, deep: bool = True) -> Endpoint:
        """Attach this limit to a function or class. To attach it again has no effect.

        `deep`: attach it to the wrapped functions as well, because a framework may have registered one of them. Raises
        `TypeError` if the object does not accept attributes.
        """
        if hasattr(endpoint, "wsgi_app"):  # a Flask app accepts attributes, but nothing would enforce them
            raise ConfigTypeError(
                f"got the app {type(endpoint).__name__}, expected a view; limits of all requests go into the "
                "extension: RateLimiter(app, limits='100/minute')",
                code="RL-046",
            )
        number = next(_sequence)
        attribute = f"{_PREFIX}{number}"
        for target in unwrap_chain(endpoint, _WRAPPED_ATTRIBUTES) if deep else (endpoint,):
            if self in _attached_to(target).values():
                continue
            try:
                setattr(target, attribute, self)
            except (AttributeError, TypeError):
                raise ConfigTypeError(
                    f"a limit is attached to a function or a class; got {endpoint!r:.100}", code="RL-046"
                ) from None
        EndpointLimit.version = number  # last, so that a cache that was built meanwhile is rebuilt
        return endpoint


class AsgiLimit:
    """Base class of endpoint limits that the integrations of ASGI frameworks enforce."""

    __slots__ = ()


class HonorsExempt:
    """Base class of limits that are placed around endpoints, and skip exempt endpoints."""

    __slots__ = ()

    @property
    def limits_around(self) -> Iterable[EndpointLimit]:
        """The limits that it enforces."""
        return ()


class _DecoratorOptions(EndpointLimitOptions, total=False):
    limits: Any


def _rule(**options: Any) -> Rule:
    return Rule(path=_EVERYWHERE, **options)


def limits_on(endpoint: object) -> tuple[EndpointLimit, ...]:
    """Return the limits attached to an endpoint or to the functions it wraps, in the order of the source code."""
    by_number = {
        number: endpoint_limit
        for target in unwrap_chain(endpoint)
        for number, endpoint_limit in _attached_to(target).items()
    }
    # decorators run from bottom to top, so the topmost limit was attached last
    return tuple(dict.fromkeys(by_number[number] for number in sorted(by_number, reverse=True)))


def _attached_to(target: Any) -> dict[int, EndpointLimit]:
    """Return the limits attached to one object or its class, by the number of their `attach`."""
    objects = target.__mro__ if isinstance(target, type) else (target, *type(target).__mro__)
    return {
        int(name.removeprefix(_PREFIX)): endpoint_limit
        for owner in objects
        if hasattr(owner, "__dict__")
        for name, endpoint_limit in vars(owner).items()
        if name.startswith(_PREFIX)
    }


def is_exempt(endpoint: object) -> bool:
    """Return whether an endpoint has an exemption from the limits around it."""
    return any(endpoint_limit.rule.exempt for endpoint_limit in limits_on(endpoint))


def unwrap_chain(endpoint: Any, inner: Sequence[str] = _INNER_ATTRIBUTES) -> Iterator[Any]:
    """Yield the endpoint, the functions that it wraps, directly and indirectly, and the class of a view."""
    pending = [endpoint]
    for _ in range(_MAX_DEPTH):
        if not pending:
            return
        target = pending.pop(0)
        yield target
        attributes = vars(target) if hasattr(target, "__dict__") else {}
        pending += [attributes[name] for name in inner if name in attributes]
        if isinstance(target, partial):
            pending.append(target.func)


def name_for(text: str) -> str:
    """Return the name of limits that were given none. It is made from the text that identifies their endpoint."""
    name = re.sub(r"[^A-Za-z0-9.-]+", "_", text).strip("_.") or "root"
    if len(name) > _MAX_NAME_LENGTH:
        name = f"{name[: _MAX_NAME_LENGTH - 9]}-{_digest(text)}"
    return f"endpoint_{name}" if name in RESERVED_NAMES else name


def bucket_for(text: str) -> str:
    """Return the bucket name of limits on the endpoint that `text` identifies.

    Unlike `name_for`, it differs for `/items/{id}` and `/items/id`.
    """
    return text if _VALID_NAME.fullmatch(text) else f"{name_for(text)}-{_digest(text)}"


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
