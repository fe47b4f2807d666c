"""`check --store`: connects to the store of the settings and describes it."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.rules.rule_set import RuleSet
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores.url import inspect_store, redacted_url

OK: Final = 0
REJECTED: Final = 1
UNREACHABLE: Final = 2


class StoreReport:
    """The result of inspecting a store. `code`: the exit code of the command."""

    def __init__(self, settings: Settings) -> None:
        """Connect and inspect. May block for some seconds."""
        self._store = settings.store
        if not isinstance(self._store, str):
            raise ConfigError(f"store: got {type(self._store).__name__}, expected a store URL for --store")
        self._inspection = inspect_store(self._store, RuleSet(settings).algorithms, settings.store_timeout)
        self.code = OK
        if self._inspection is not None:
            self.code = REJECTED if self._inspection.mistakes else UNREACHABLE if self._inspection.unreachable else OK

    def describe(self) -> Iterator[str]:
        """Yield the report, line by line."""
        yield f"Store {redacted_url(self._store)}:"
        if self._inspection is None:
            yield "  in the memory of each process: there is nothing to connect to"
            return
        for node in self._inspection.nodes:
            yield f"  {node.label}"
            yield from _aligned(_node_rows(node, self._inspection.kind))
        for title, texts in (
            ("rejects this app", self._inspection.mistakes),
            ("no answer", self._inspection.unreachable),
            ("warning", self._inspection.warnings),
        ):
            yield from (f"  {title}: {text}" for text in texts)
        if self.code == OK:
            yield "  works: a unit was taken and its bucket reset"


def _node_rows(node: Any, kind: str) -> Iterator[tuple[str, str]]:
    if node.version is not None:
        yield "server", f"{node.server} {node.version}, {_KINDS[kind]}, mode {node.mode}, role {node.role}"
    if node.missing is not None:
        yield "rights", f"lacks {', '.join(node.missing)}" if node.missing else "all that the limits need"
    if node.latency is not None:
        yield "latency", f"{node.latency * 1000:.2f} ms, the median of five calls"
    if node.clock_offset is not None:
        yield "clock", f"{node.clock_offset:+.3f} s from this machine's"
    if node.maxmemory_policy is not None:
        bound = f"maxmemory {node.maxmemory}" if node.maxmemory else "no maxmemory"
        yield "memory", f"{bound}, policy {node.maxmemory_policy}"
    elif node.missing is not None:
        yield "memory", "unknown: the user may not run INFO"


_KINDS: Final = {"server": "one server", "cluster": "node of a cluster", "sentinel": "master by Sentinel"}


def _aligned(rows: Iterator[tuple[str, str]]) -> Sequence[str]:
    return [f"    {name:<8} {text}" for name, text in rows]
