"""python examples/plain_function.py"""

import os
import time

from ratelimit_mw import Limiter, RateLimited
from ratelimit_mw.stores.url import open_store

limiter = Limiter(open_store(os.environ.get("STORE", "memory://"), timeout=5))


@limiter.limit("2 per 2 seconds using fixed_window", key=lambda user, **_: ("mail", user))
def send(user: str, *, text: str) -> None:
    print(f"to {user}: {text}")


def job(mails: list[tuple[str, str]]) -> None:
    for user, text in mails:
        while True:
            try:
                send(user, text=text)
                break
            except RateLimited as refused:
                print(f"{user} has to wait")
                time.sleep(refused.verdict.retry_after)


if __name__ == "__main__":
    job([("alice", "one"), ("alice", "two"), ("bob", "one"), ("alice", "three")])
