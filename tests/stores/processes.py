"""Eight processes that begin at the same moment."""

import subprocess
import sys


def by_eight_processes(code: str, *arguments: str) -> list[list[int]]:
    """Run this code eight times side by side. It prints "ready", waits for a line, and prints numbers."""
    command = [sys.executable, "-c", code, *arguments]
    workers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    for worker in workers:  # all are up before the first one starts
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    return [[int(number) for number in worker.communicate(timeout=60)[0].split()] for worker in workers]
