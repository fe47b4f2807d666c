"""Lines: the limits of one rule as they are asked, with key, cost, role and the name that headers give them."""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Final

from ratelimit_mw.callables import check_plain
from ratelimit_mw.calls import Answers, Call, cost_answer
from ratelimit_mw.choices import Choice, Dynamic, Tiers
from ratelimit_mw.errors import Mistakes
from ratelimit_mw.identity import bucket_key, encode
from ratelimit_mw.items import Item, check_cost, check_different
from ratelimit_mw.kept import Budget, Kept
from ratelimit_mw.keys import Caller, Key
from ratelimit_mw.limit import Charge, Role
from ratelimit_mw.notices import warn_rarely
from ratelimit_mw.options import MissingKey
from ratelimit_mw.penalties import check_penalty
from ratelimit_mw.response import Policy
from ratelimit_mw.rules import OnStoreError, Rule
from ratelimit_mw.settings import Settings
from ratelimit_mw.settle_options import Settling, settling
from ratelimit_mw.slots import slots_item
from ratelimit_mw.stores.local import share_of

_WSGI: Final = " under WSGI"
_GIVEN: Final = 1024  # lists of limits that a callable gave: there may be one for each client
CHARGES: Final = Budget(32_768)  # of recent clients, for all limits: made once, they cost a look-up instead of a hash


class Line:
    """One limit as it is asked. `charges[identity, cost]`: what the store is told. `bans`: it is the penalty."""

    __slots__ = (
        *(
            "bans",
            "charges",
            "cost",
            "key",
            "local",
            "missing",
            "on_store_error",
            "policy",
            "queue",
            "queue_timeout",
            "shadow",
        ),
        *("shared", "waits"),
    )

    def __init__(self, item: Item, name: str, lines: "Lines", *, penalty: bool = False) -> None:
        settings, own = lines.settings, lines.own
        self.key: Final = lines.key if item.key is None else Key(item.key, settings.ipv6_prefix)
        self.cost: Final = lines.cost if item.cost is None else item.cost
        self.bans: Final = penalty
        self.missing: Final[MissingKey] = settings.missing_key
        self.on_store_error: Final[OnStoreError] = (own and own.on_store_error) or settings.on_store_error
        self.shadow: Final = item.shadow or settings.shadow or (own is not None and own.shadow)
        queue, longest = (None, None) if own is None else (own.queue, own.queue_timeout)
        held = item.limit.held and not self.shadow
        self.queue: Final = (settings.queue if queue is None else queue) if held else 0
        self.queue_timeout: Final = settings.queue_timeout if longest is None else longest
        self.waits: Final = item.limit.patience_us > 0 and not self.shadow
        named = partial(
            Policy,
            name,
            hidden=self.key.is_all or penalty,
            shadow=self.shadow,
            settles=item.settle,
            settling=lines.settling if item.settle else None,
        )
        self.policy: Final = named(item.limit)
        part = share_of(item.limit, settings.local_share)  # while the store fails
        self.local: Final = self.policy if part is item.limit else named(part)
        self.shared: Final = encode([("missing", self.key.text)])  # the identity of all whose key is not there
        role: Final[Role] = "penalty" if penalty else "shadow" if self.shadow else "limit"
        secret = settings.key_secret.encode("utf-8", "surrogatepass")

        def charge(of: tuple[str, int]) -> Charge:
            identity, cost = of
            key = bucket_key(identity, lines.bucket, secret=secret, plain=settings.plain_keys)
            return Charge(key, item.limit, cost, None, role, None, item.lease, item.lease_time)

        self.charges: Final = Kept(charge, CHARGES)

    def cost_of(self, answers: Answers) -> int:
        """Units that a request takes."""
        return self.cost if isinstance(self.cost, int) else cost_answer(self.cost, answers)


class Lines:
    """The lines of one rule: `fixed`, or else chosen for each request. `calls`: the callables they may need.

    `rule`: its name in headers. `own`: the rule itself, where it is not one of ours. `bucket`: its name in bucket keys,
    where that is another. `concurrent`: how many may be at work.
    `waits`: whether a request may be held back. `follows`: whether something of it is settled after the response;
    `holds`: whether slots are given back then; `queues`: whether a request may have to wait for one.
    """

    def __init__(
        self,
        found: Sequence[Item] | Choice,
        rule: str,
        settings: Settings,
        own: Rule | None = None,
        bucket: str | None = None,
        concurrent: int = 0,
    ) -> None:
        self.rule: Final = rule
        self.bucket: Final = bucket or rule
        self.settings: Final = settings
        self.own: Final = own
        self._key: Final = settings.key if own is None or own.key is None else own.key
        self.key: Final = Key(self._key, settings.ipv6_prefix)
        cost = check_cost(own.cost, []) if own else None
        self.cost: Final[int | Call] = 1 if cost is None else cost
        self._penalty: Final = _penalty(settings, own, rule)
        self.settling: Final = _settling(settings, own)
        self.follows: Final = self.settling is not None and found != []
        self._slots: Final = (
            (slots_item(concurrent, settings.slot_lifetime, settings.slot_retry),) if concurrent else ()
        )
        self._choice: Final = found if isinstance(found, Choice) else None
        self._chosen: Final = lru_cache(_GIVEN)(self._checked)
        self.fixed: Final[Sequence[Line] | None] = None if isinstance(found, Choice) else self._made(tuple(found))
        self.calls: Final = self._calls(found)
        # limits that a callable gives may hold back too
        self.waits: Final = isinstance(found, Dynamic) or any(line.waits for line in self.known)
        self.holds: Final = any(line.policy.limit.held for line in self.known)
        self.queues: Final = any(line.queue for line in self.known)

    def of(self, request: Caller, route: str, answers: Answers) -> Sequence[Line] | None:
        """The lines of a request; None when a callable gave no limits that can be used."""
        if self._choice is None:
            return self.fixed
        try:
            items = self._choice.items(request, route, answers)
            return None if items is None else self._chosen(tuple(items))
        except Exception as error:  # noqa: BLE001  # whatever a callable gives, the request is limited
            warn_rarely(f"limits of {self.rule}", "cannot be used, the default ones apply: %s", error)
            return None

    @property
    def tier(self) -> Key | None:
        """What names the tier, where limits go by tier."""
        return self._choice.key if isinstance(self._choice, Tiers) else None

    @property
    def keys(self) -> Sequence[Key]:
        """The keys that are known before a request comes: the rule's own too, where a callable gives its limits."""
        own = [self.key] if self.fixed is None and self.tier is None else []
        return own + [line.key for line in self.known]

    @property
    def known(self) -> Sequence[Line]:
        """All lines that are known before a request comes."""
        if isinstance(self._choice, Tiers):
            return [line for items in self._choice.all.values() for line in self._chosen(tuple(items))]
        return self._made(()) if self.fixed is None else self.fixed

    def _checked(self, items: tuple[Item, ...]) -> Sequence[Line]:
        """The lines of limits that are chosen. Raises `ConfigError` for two that can count in one bucket."""
        if isinstance(self._choice, Dynamic):  # tiers are checked at start
            check_different("limits", items, self._key)
        return self._made(items)

    def _made(self, items: tuple[Item, ...]) -> Sequence[Line]:
        names = [
            item.limit.name or (self.rule if index == 0 else f"{self.rule}-{index + 1}")
            for index, item in enumerate(items)
        ]
        names += [f"{self.rule}-concurrent"] * len(self._slots)
        lines = [Line(item, name, self) for item, name in zip((*items, *self._slots), names, strict=True)]
        if self._penalty is not None:
            lines.append(Line(self._penalty, f"{self.rule}-penalty", self, penalty=True))
        return lines

    def named_calls(self) -> Iterator[tuple[str, Call]]:
        """The callables that a request needs, and that of `settle`, each with the setting that it is."""
        yield from (("key", call) for key in self.keys for call in key.calls)
        costs = [self.cost, *(line.cost for line in self.known)]
        yield from (("cost", cost) for cost in costs if not isinstance(cost, int))
        if self._choice is not None:
            word = "tier" if isinstance(self._choice, Tiers) else "limits"
            yield from ((word, call) for call in self._choice.calls)
        if self.settling is not None and self.settling.call is not None:
            yield "settle", self.settling.call

    def _calls(self, found: Sequence[Item] | Choice) -> Sequence[Call]:
        calls = list(found.calls) if isinstance(found, Choice) else []
        for line in self.known:
            calls += calls_of(line.key, line.cost)
        if self.fixed is None:
            calls += calls_of(self.key, self.cost)
        return list(dict.fromkeys(calls))


def check_all_plain(all_lines: Iterable[Lines]) -> None:
    """Raise `ConfigError` for the async callables of these lines, where nothing is awaited."""
    mistakes = Mistakes()
    for lines in all_lines:
        for setting, call in lines.named_calls():
            with mistakes.at(setting):
                check_plain(call, _WSGI)
    mistakes.tell()


def _settling(settings: Settings, own: Rule | None) -> Settling | None:
    """How it is settled after the response: as the rule says, else as the top does."""
    settle, counts = (
        getattr(settings if own is None or getattr(own, word) is None else own, word)
        for word in ("settle", "count_status")
    )
    return settling(settle, counts)


def _penalty(settings: Settings, own: Rule | None, rule: str) -> Item | None:
    """What counts refusals: those of a rule, or the top's, which stands beside `app_limits` on every request.

    What refuses nobody, because it is a shadow, bans nobody.
    """
    said = own.penalty if own is not None else settings.penalty if rule == "app" else None
    ban = None if settings.shadow or (own is not None and own.shadow) else check_penalty(said)
    return None if ban is None else Item(limit=ban, cost=1, settle=False)


def calls_of(key: Key, cost: int | Call) -> Sequence[Call]:
    """The callables whose answers a key and a cost need."""
    return key.calls if isinstance(cost, int) else [*key.calls, cost]
