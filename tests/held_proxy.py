"""A TCP proxy that holds the replies of a server until the test releases them, to imitate a slow server."""

import threading

from faulty_proxy import FaultyProxy


class HeldProxy(FaultyProxy):
    """A proxy for a local port, with its own threads. `asked`: set when a client has sent data since `hold`.

    Replies are held for at most 20 seconds. Without `hold`, each reply takes `latency` seconds.
    """

    def __init__(self, port: int, latency: float = 0.0) -> None:
        self.asked = threading.Event()
        super().__init__(port, latency)
        if latency:
            self.mode = "is late"

    def hold(self) -> None:
        """Hold all replies from now on."""
        self.asked.clear()
        self.mode = "holds"

    def release(self) -> None:
        """Pass on the held replies, and all later ones."""
        self.mode = "passes"

    def heard(self) -> None:
        """See `FaultyProxy.heard`."""
        if self.mode == "holds":
            self.asked.set()
