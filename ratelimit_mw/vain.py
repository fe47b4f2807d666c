"""What rules say, and nothing comes of: found at the start, as what `advice` warns of."""

from collections.abc import Iterable, Sequence

from ratelimit_mw.lines import Line, Lines
from ratelimit_mw.notices import Finding
from ratelimit_mw.rules import Rule


def in_vain(lines: Lines, compiled: Sequence[Lines]) -> Iterable[Finding]:
    """What a rule says, and nothing comes of, each with the fix. `compiled`: all lines, those of `app_limits` first."""
    if lines.waits and lines.settings.max_waiting == 0 and lines.fixed is not None:
        yield _finding(lines, "beside max_waiting = 0 its max_delay holds nobody back; remove one of them", less=False)
    if lines.own is not None:
        yield from (_finding(lines, text) for text in _own(lines, lines.own))
    if ban := next((line for line in lines.known if line.bans), None):
        yield from _penalty(ban, lines, compiled)


def _own(lines: Lines, own: Rule) -> Iterable[str]:
    if own.penalty is not None and own.shadow:
        yield "a shadow refuses nobody, so its penalty bans nobody"
    if own.follows and lines.fixed is not None and not any(line.policy.settles for line in lines.fixed):
        yield "settle and count_status change nothing: it has no limit that is settled; remove them"


def _finding(lines: Lines, text: str, *, less: bool = True) -> Finding:
    return Finding(f"rule {lines.rule}: {text}", less)


def _penalty(ban: Line, lines: Lines, compiled: Sequence[Lines]) -> Iterable[Finding]:
    """One that bans everybody at once, or never anybody."""
    if ban.key.is_all:
        text = "its penalty has the key all, so that the refusals of some ban everybody; give it a key of each client"
        yield _finding(lines, text, less=False)
        return
    alone = lines.own is not None and lines.own.ends
    beside = [one for one in compiled if not alone or one in (lines, compiled[0])]
    others = [line for one in beside for line in one.known if not line.bans and not line.shadow]
    known = all(one.fixed is not None or one.tier is not None for one in beside)
    if known and others and not any(line.key.meets(ban.key) for line in others):
        yield _finding(
            lines,
            f"its penalty never acts: it counts refusals by limits with the key {ban.key.text}, and no limit has it; "
            "give the penalty's rule the key of one of its limits",
        )
