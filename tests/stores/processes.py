"""Runs code in eight processes that start at the same moment."""

import subprocess
import sys


def by_eight_processes(code: str, *arguments: str) -> list[list[int]]:
    """Run code in eight processes concurrently. It must print "ready", wait for a line, and print numbers.

    Returns the numbers of each process.
    """
    command = [sys.executable, "-c", code, *arguments]
    workers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    for worker in workers:  # all are ready before the first one starts
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    return [[int(number) for number in worker.communicate(timeout=60)[0].split()] for worker in workers]
