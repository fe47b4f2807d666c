"""A TCP proxy that can keep what a server answers until it is told to pass it on: a server as slow as one likes."""

import threading

from faulty_proxy import FaultyProxy


class HeldProxy(FaultyProxy):
    """In front of one port of this machine, in threads of its own. `asked`: somebody has sent something since `hold`.

    It keeps nothing longer than 20 seconds. An answer takes `latency` seconds even when nothing is kept.
    """

    def __init__(self, port: int, latency: float = 0.0) -> None:
        self.asked = threading.Event()
        super().__init__(port, latency)
        if latency:
            self.mode = "is late"

    def hold(self) -> None:
        """Keep what is answered from now on."""
        self.asked.clear()
        self.mode = "holds"

    def release(self) -> None:
        """Pass on what was kept, and all that follows."""
        self.mode = "passes"

    def heard(self) -> None:
        """See `FaultyProxy.heard`."""
        if self.mode == "holds":
            self.asked.set()
