"""Gate: walks a request through match, ask, plan, take, conclude, in a thread.

See `gate`, which does the same for asyncio.
"""

import threading
import time
from collections.abc import Sequence
from contextlib import closing
from time import perf_counter
from typing import Any, Final

from ratelimit_mw.base_gate import BaseGate
from ratelimit_mw.callables import name_of
from ratelimit_mw.calls import FAILED, Answers, Call, close_unawaited
from ratelimit_mw.corrections import Taken, as_taken
from ratelimit_mw.errors import ConfigError
from ratelimit_mw.held import KEEPER
from ratelimit_mw.holding import taken_by, turned_away
from ratelimit_mw.holds import Hold
from ratelimit_mw.limit import Charge
from ratelimit_mw.lines import check_all_plain
from ratelimit_mw.matching import Marked, Rules
from ratelimit_mw.notices import warn_rarely
from ratelimit_mw.policy import Match, Plan, conclude, plan, without_charged
from ratelimit_mw.refusals import log_refusal
from ratelimit_mw.request import Request
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.later import NOT_SENT, Told, untold
from ratelimit_mw.stores.local import LocalStore
from ratelimit_mw.stores.url import open_store
from ratelimit_mw.turns import Pause, Take, Turns, wish_of
from ratelimit_mw.verdict import Source, Verdict

NO_ANSWERS: Final[Answers] = {}
KEPT: Final = "the units of a request that was held back are not known to be given back: %s"
RAISED: Final = (
    "raised an error: where it gives a key or tier, the request counts as one without it; where it gives a cost, the "
    "cost is 1; where it gives limits, the default limits apply"
)


class Gate(BaseGate):
    """For threads. `admit` never raises for what a client sent."""

    _store: Store
    _answerers: tuple[str, ...] = ("wsgi", "plain")
    _places = 2  # each holds up a thread of the server; waitress has 4
    _allowed = "a WSGI app, or a callable (request, verdict)"

    def __init__(self, settings: Settings, rules: Rules | None = None, local: LocalStore | None = None) -> None:
        super().__init__(settings, rules, local)
        if rules is None:  # else the gate that made them may await
            check_all_plain(self._rules.lines)
        store = (
            open_store(settings.store, settings.store_timeout) if isinstance(settings.store, str) else settings.store
        )
        if not isinstance(store, Store):
            raise ConfigError(
                f"store: found {type(store).__name__}, allowed is a URL or a Store with take(); WSGI cannot await"
            )
        self._take_over(store)

    def admit(self, request: Request, marked: Marked = ()) -> Verdict | None:
        """The verdict on a request; None where nothing is limited. `marked`: what stands on its endpoint."""
        match = self._rules.match(request, marked)
        if match is None:
            return None
        began = perf_counter() if self._tell is not None else 0.0
        request.messages = match.messages
        asked = plan(match, request, _ask(match.calls, request) if match.calls else NO_ANSWERS)
        if (outer := request.outcome) is not None and outer.verdict is not None:
            asked = without_charged(asked, outer.charged)
        who = self._who(asked, request) if match.waits else ()
        if match.waits:
            asked = self.room.asked(asked, who)
        verdict = self._decided_in_turn(match, asked, request) if match.queues else self._decided(match, asked)
        if match.waits and verdict is not None and verdict.delay:
            verdict = self._placed(verdict, who)
        held = self._hold(match, verdict, request) if match.holds else None
        if self._tell is not None:
            self._tell_decision(verdict, request, began)
        if verdict is not None and not verdict.allowed:
            log_refusal(verdict, self.settings.key_secret)
        if match.waits and verdict is not None and verdict.delay:
            self._wait(verdict, held, who)
        if match.follows and verdict is not None and verdict.allowed:
            self._follow(request)
        return verdict

    def admit_client(self, client: str | None, method: str | None, marked: Marked = ()) -> Verdict | None:
        """The verdict where nothing but the client's address counts; None where more has to be looked at.

        For a request without a user, that none of us further out has charged: what `admit` comes down to, in a quarter
        of its time. `marked`: what stands on its endpoint.
        """
        of_client = self._rules.of_client_at(marked) if marked else self._rules.of_client
        if of_client is None or method == "OPTIONS":
            return None
        asked = of_client[client]
        try:
            if asked.alone and not self._learns:  # in memory, which never fails, and decides itself
                (decision,) = decisions = self._store.take(asked.charges)
                if decision.allowed:
                    return Verdict(True, asked.charges, decisions, asked.match.rule, "store", asked.policies)
                refused = Verdict(False, asked.charges, decisions, asked.match.rule, "store", asked.policies)
                verdict: Verdict | None = refused
            else:
                verdict = self._decided(asked.match, asked)
        except Exception as error:  # noqa: BLE001  # whatever a store raises or answers, the request is answered
            verdict = self._without_store(asked.match, asked, error)
        if verdict is not None and not verdict.allowed:
            log_refusal(verdict, self.settings.key_secret)
        return verdict

    def _decided(self, match: Match, asked: Plan) -> Verdict | None:
        if not asked.charges:
            return conclude(match, asked, ()) if asked.denied else None
        if match.holds:
            KEEPER.tend()
        try:
            decisions = self._store.take(asked.charges)
            verdict = conclude(match, asked, decisions)
            if self._learns:
                self._learn(asked, decisions, verdict)
        except Exception as error:  # noqa: BLE001  # whatever a store raises or answers, the request is answered
            return self._without_store(match, asked, error)
        return verdict

    def _placed(self, verdict: Verdict, who: Sequence[str]) -> Verdict:
        """The verdict on a request that is to wait, for which a place is taken if there is one. `who`: see `Room`."""
        if self.room.enter(who):
            return verdict
        self._undo(verdict, None)
        return turned_away(verdict)

    def _wait(self, verdict: Verdict, held: Hold | None, who: Sequence[str]) -> None:
        """Until its turn. What ends the wait early gives back what was taken."""
        try:
            time.sleep(verdict.delay)
        except BaseException:
            self._undo(verdict, held)
            raise
        finally:
            self.room.leave(who)

    def _undo(self, verdict: Verdict, held: Hold | None) -> None:
        """Give back what was taken for a request, whose slots are renewed no more: else they would be taken again."""
        if held is not None:
            held.among.end(held)
        self._give_back([taken_by(self, verdict)])
        self._freed(verdict)

    def _decided_in_turn(self, match: Match, asked: Plan, request: Request) -> Verdict | None:
        """The same where a request may wait for a slot: behind those that wait already."""
        wish = wish_of(asked, lambda: self._who(asked, request))
        if wish is None:
            return self._decided(match, asked)
        woken = threading.Event()
        with closing(Turns(self._queues, match, asked, wish, woken.set).steps()) as steps:
            answer: Any = None
            while True:
                try:
                    step = steps.send(answer)
                except StopIteration as end:
                    verdict: Verdict | None = end.value
                    return verdict
                if isinstance(step, Take):
                    answer = self._decided(match, step.asked)
                elif isinstance(step, Pause):
                    woken.wait(step.seconds)
                    woken.clear()
                else:
                    try:
                        answer = self._store.peek(step.asked.charges)
                    except Exception as error:  # noqa: BLE001  # whatever a store raises, the request is answered
                        return self._without_store(match, asked, error)

    def _give_back(self, steps: Sequence[Taken]) -> None:
        """Return the units of a request that found no place to wait, or whose wait ended early."""
        for gate, source, charges in steps:
            try:
                gate.holds(source).settle(charges)
            except Exception as error:  # noqa: BLE001  # whatever a store raises, or one that has to be awaited
                warn_rarely("store", KEPT, error)

    def correct(
        self,
        source: Source,
        charges: Sequence[Charge],
        loop: object = None,  # noqa: ARG002  # for who awaits
        told: Told = untold,
    ) -> None:
        """Settle what was taken for a request, once its true cost is known. A store that fails is logged, rarely.

        `told`: hears what was taken by it, one charge for each; nothing where that is not known.
        """
        taken: Sequence[Charge] = ()
        try:
            taken = as_taken(charges, self.holds(source).settle(charges))  # type: ignore[union-attr]  # stores for threads
        except Exception as error:  # noqa: BLE001  # whatever a store raises, the request is answered
            warn_rarely("settle", NOT_SENT, type(error).__name__)
        told(taken)

    def close(self) -> None:
        """Close the store if it was made here."""
        if self._owns_store:
            self._store.close()


class TellingGate(Gate):
    """One of whose decisions a hook hears: it is told of requests, so none goes the short way."""

    def admit_client(self, client: str | None, method: str | None, marked: Marked = ()) -> Verdict | None:  # noqa: ARG002  # whoever asks
        """None: more has to be looked at."""
        return None


def _ask(calls: Sequence[Call], request: Request) -> Answers:
    answers: dict[Call, Any] = {}
    for call in calls:
        try:
            answers[call] = answer = call(request)
            close_unawaited(answer)
        except Exception as error:  # noqa: BLE001  # a callable that raises never frees a request
            warn_rarely(name_of(call), RAISED, error=error)
            answers[call] = FAILED
    return answers
