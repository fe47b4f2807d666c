"""Sends requests until it is stopped. Half of the clients are new, the others return."""

import threading
import time
from collections import Counter
from contextlib import AbstractContextManager
from http.client import HTTPConnection
from random import Random

CONNECTIONS = 8
REGULARS = 300  # number of clients that return


class Load(AbstractContextManager["Load", None]):
    """Sends requests in threads. `statuses`: the responses by status. `errors`: exceptions that ended a thread."""

    def __init__(self, port: int) -> None:
        self.statuses: Counter[int] = Counter()
        self.errors: list[BaseException] = []
        self._port = port
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._clients: dict[int, set[str]] = {}  # by second
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(CONNECTIONS)]
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def clients_since(self, seconds: int) -> int:
        """Return the number of different clients that sent requests in the last `seconds`."""
        with self._lock:
            first = int(time.monotonic()) - seconds
            self._clients = {second: clients for second, clients in self._clients.items() if second >= first}
            return len(set().union(*self._clients.values()))

    def _run(self, number: int) -> None:
        try:
            connection = HTTPConnection("127.0.0.1", self._port, timeout=30)
            random = Random(number)  # noqa: S311  # repeatable, and not a secret
            while not self._over.is_set():
                self._ask(connection, random)
            connection.close()
        except BaseException as error:  # noqa: BLE001  # the test checks for errors
            self.errors.append(error)

    def _ask(self, connection: HTTPConnection, random: Random) -> None:
        fresh = random.random() < 1 / 2
        client = f"new {random.getrandbits(64)}" if fresh else f"regular {random.randrange(REGULARS)}"
        with self._lock:
            self._clients.setdefault(int(time.monotonic()), set()).add(client)
        for method, path in (("POST", "/login"), ("GET", "/")):
            connection.request(method, path, headers={"X-Client": client})
            answer = connection.getresponse()
            answer.read()
            with self._lock:
                self.statuses[answer.status] += 1
