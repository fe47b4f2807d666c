"""What rules say, and nothing comes of: found at the start, as what `advice` warns of."""

from collections.abc import Iterable, Sequence

from ratelimit_mw.lines import Line, Lines
from ratelimit_mw.rules import Rule


def in_vain(lines: Lines, compiled: Sequence[Lines]) -> Iterable[str]:
    """What a rule says, and nothing comes of, each with the fix. `compiled`: all lines, those of `app_limits` first."""
    if lines.waits and lines.settings.max_waiting == 0 and lines.fixed is not None:
        yield "beside max_waiting = 0 its max_delay holds nobody back; remove one of them"
    if lines.own is not None:
        yield from _own(lines, lines.own)
    if ban := next((line for line in lines.known if line.bans), None):
        yield from _penalty(ban, lines, compiled)


def _own(lines: Lines, own: Rule) -> Iterable[str]:
    if own.penalty is not None and own.shadow:
        yield "a shadow refuses nobody, so its penalty bans nobody"
    if own.follows and lines.fixed is not None and not any(line.policy.settles for line in lines.fixed):
        yield "settle and count_status change nothing: it has no limit that is settled; remove them"


def _penalty(ban: Line, lines: Lines, compiled: Sequence[Lines]) -> Iterable[str]:
    """One that bans everybody at once, or never anybody."""
    if ban.key.is_all:
        yield "its penalty has the key all, so that the refusals of some ban everybody; give it a key of each client"
        return
    alone = lines.own is not None and lines.own.ends
    beside = [one for one in compiled if not alone or one in (lines, compiled[0])]
    others = [line for one in beside for line in one.known if not line.bans and not line.shadow]
    known = all(one.fixed is not None or one.tier is not None for one in beside)
    if known and others and not any(line.key.meets(ban.key) for line in others):
        yield (
            f"its penalty counts what limits with its own key, {ban.key.text}, refuse, and there is none; "
            "let it be the key of one"
        )
