"""Contenders that run in worker processes: the same code of this program, with the package of either tree."""

import json
import os
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from benchmarks.lab import Lab, Missing
from benchmarks.runner import Batch, Contender, Setup
from benchmarks.trees import ROOT, Tree

_LIFE: Final = 10  # turns of a process; several take part, because the layout of its memory makes one faster or slower


class Worker(AbstractContextManager["Worker", None]):
    """A worker process with the package of a tree. Raises `Missing` if the tree lacks what the contender needs."""

    def __init__(self, tree: Tree, contender: str) -> None:
        self._tree = tree
        path = os.pathsep.join([str(tree.folder), str(ROOT)])
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "benchmarks.worker", contender],
            env=os.environ | {"PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            self._greet()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # it ends at the end of its input

    def run(self, calls: int) -> Batch:
        """Run one turn."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{calls}\n")
        self._process.stdin.flush()
        return Batch(*self._heard())

    def _greet(self) -> None:
        hello = self._heard()
        if "missing" in hello:
            raise Missing(f"{self._tree.name}: {hello['missing']}")
        if not Path(hello["package"]).is_relative_to(self._tree.folder):
            raise RuntimeError(f"{self._tree.title}: measures {hello['package']}, which is not in {self._tree.folder}")

    def _heard(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._tree.title}: its worker ended, with code {self._process.wait()}")
        return json.loads(line)


class _Relay:
    """Runs workers one after another. The first turn of each warms it up and is discarded."""

    def __init__(self, tree: Tree, contender: str) -> None:
        self._tree = tree
        self._contender = contender
        self._turns = 0
        self._worker = Worker(tree, contender)

    def close(self) -> None:
        self._worker.__exit__()

    def batch(self, calls: int) -> Batch:
        if self._turns % _LIFE == 0:
            if self._turns:
                self.close()
                self._worker = Worker(self._tree, self._contender)
            self._worker.run(calls)
        self._turns += 1
        return self._worker.run(calls)


def remote(tree: Tree, contender: str) -> Setup:
    """Set up `contender`, the `module:name` of a Setup, with the package of `tree`."""

    def setup(lab: Lab) -> Contender:
        relay = _Relay(tree, contender)
        lab.closing.callback(relay.close)
        return relay.batch

    return setup
