"""Reads the overrides that the processes of an app apply, for `peek` and `reset`."""

from ratelimit_mw.admin.target import Target
from ratelimit_mw.engine.refresh import Refresher
from ratelimit_mw.rules.overrides import NO_OVERRIDES, ActiveOverrides
from ratelimit_mw.stores import Store


def overrides_in_force(target: Target, store: Store) -> ActiveOverrides:
    """Return the overrides in a store. Those that processes ignore are left out, with the warning that they log."""
    if not target.settings.refresh:
        return NO_OVERRIDES
    refresher = Refresher(store, target.settings)  # its own, as one of the app may not look again yet
    refresher.look_in_thread()
    return refresher.overrides
