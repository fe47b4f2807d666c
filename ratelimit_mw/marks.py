"""Marks: limits that stand on an endpoint, in the code. The faces of frameworks find and enforce them."""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from hashlib import blake2b
from itertools import count
from typing import Any, ClassVar, Final, Self, TypeVar, Unpack

from ratelimit_mw.choices import check_buckets, fixed_items
from ratelimit_mw.errors import ConfigError
from ratelimit_mw.keys import sound_key
from ratelimit_mw.lines import Lines, check_all_plain
from ratelimit_mw.rules import LimitsSpec, MarkOptions, Rule
from ratelimit_mw.settings import Settings
from ratelimit_mw.words import OWN_NAMES, made

Endpoint = TypeVar("Endpoint")  # a function, a class, or what groups them in a framework

_PREFIX: Final = "__ratelimit_mw_"  # an attribute of its own for each: where decorators merge attributes, none is lost
_turns: Final = count()
_EVERYWHERE: Final = "/{rest:path}"
_WRAPPED: Final = ("__wrapped__",)  # what decorators leave of what they wrap
_INNER: Final = (*_WRAPPED, "view_class")  # and Flask and Django of a class, of which there may be other views
_LONGEST: Final = 64  # characters of a name
_DEEPEST: Final = 50  # decorators on one endpoint
_SAME: Final = re.compile(r"[A-Za-z0-9_.]{1,64}")  # texts that are names already
_BARE: Final = Settings(limits=[])


class Mark:
    """A rule without a path. Raises `ConfigError` for what no rule may say, and for tiers without a `tier` of its own.

    `limits` and `options`: as in a rule of the settings; what is not said is the settings'. `latest`: another number
    whenever a mark was put somewhere, so that whoever remembers what stands on endpoints looks again.
    """

    __slots__ = ("__weakref__", "rule")

    latest: ClassVar[int] = -1

    def __init__(self, limits: LimitsSpec, **options: Unpack[MarkOptions]) -> None:
        self.rule: Final[Rule] = made(_rule, {**options, "limits": limits}, _Words)
        found = self.rule.limits_by(None, None)
        check_buckets("limits", found, sound_key("user | ip" if self.rule.key is None else self.rule.key))

    @classmethod
    def exempting(cls) -> Self:
        """One that skips the default limits."""
        mark = cls.__new__(cls)
        mark.rule = Rule(path=_EVERYWHERE, exempt=True)  # type: ignore[misc]  # its constructor
        return mark

    def without_slots(self) -> Self:
        """The mark, for where nobody sees the end of a response. Raises `ConfigError` if it is to hold slots."""
        items = fixed_items(self.rule.limits_by(None, None))
        if self.rule.concurrent or any(item.limit.held for limits in items for item in limits):
            raise ConfigError(
                "concurrent: nobody sees the end of a response here; a rule of the settings may have it, for this path"
            )
        return self

    def without_awaiting(self) -> Self:
        """The mark, for where nothing can be awaited. Raises `ConfigError` if one of its callables is async."""
        check_all_plain([Lines(self.rule.limits_by(None, None), "", _BARE, self.rule)])
        return self

    def put_on(self, endpoint: Endpoint, *, deep: bool = True) -> Endpoint:
        """Leave the mark on a function or class. Putting it there again changes nothing.

        `deep`: on what it wraps too, which a framework may have kept before. Raises `TypeError` for what cannot bear
        one.
        """
        turn = next(_turns)
        attribute = f"{_PREFIX}{turn}"
        for one in layers(endpoint, _WRAPPED) if deep else (endpoint,):
            if self in _borne_by(one).values():
                continue
            try:
                setattr(one, attribute, self)
            except (AttributeError, TypeError):
                raise TypeError(f"a limit stands on a function or a class; found {endpoint!r:.100}") from None
        Mark.latest = turn  # when it is there: whoever looks in between looks again
        return endpoint


class _Words(MarkOptions, total=False):
    limits: Any


def _rule(**words: Any) -> Rule:
    return Rule(path=_EVERYWHERE, **words)


def marks_of(endpoint: object) -> tuple[Mark, ...]:
    """What stands on an endpoint, in the order in which it reads; decorators between may have wrapped it."""
    found = {turn: mark for one in layers(endpoint) for turn, mark in _borne_by(one).items()}
    return tuple(dict.fromkeys(found[turn] for turn in sorted(found, reverse=True)))  # the uppermost was put on last


def _borne_by(one: Any) -> dict[int, Mark]:
    """What stands on one object or its class, and when it was put there."""
    bearers = one.__mro__ if isinstance(one, type) else (one, *type(one).__mro__)
    return {
        int(name.removeprefix(_PREFIX)): mark
        for bearer in bearers
        if hasattr(bearer, "__dict__")
        for name, mark in vars(bearer).items()
        if name.startswith(_PREFIX)
    }


def is_exempt(endpoint: object) -> bool:
    """Whether limits around the endpoint pass it."""
    return any(mark.rule.exempt for mark in marks_of(endpoint))


def layers(endpoint: Any, inner: Sequence[str] = _INNER) -> Iterator[Any]:
    """The endpoint, what it wraps, what that wraps, and so on; and the class of a view."""
    waiting = [endpoint]
    for _ in range(_DEEPEST):
        if not waiting:
            return
        one = waiting.pop(0)
        yield one
        known = vars(one) if hasattr(one, "__dict__") else {}
        waiting += [known[name] for name in inner if name in known]
        if isinstance(one, partial):
            waiting.append(one.func)


def name_for(text: str) -> str:
    """A name for limits that have none, made of what tells their endpoint apart."""
    name = re.sub(r"[^A-Za-z0-9.-]+", "_", text).strip("_.") or "root"
    if len(name) > _LONGEST:
        name = f"{name[: _LONGEST - 9]}-{_digest(text)}"
    return f"endpoint_{name}" if name in OWN_NAMES else name


def bucket_for(text: str) -> str:
    """The same for their buckets, where `/items/{id}` and `/items/id` are two."""
    return text if _SAME.fullmatch(text) else f"{name_for(text)}-{_digest(text)}"


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
