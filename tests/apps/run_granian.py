"""Starts granian with several workers from Python: `python -m run_granian fork 3 8000 shared_asgi:app`."""

import multiprocessing
import sys

from granian import Granian
from granian.constants import Interfaces

if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    Granian(sys.argv[4], port=int(sys.argv[3]), interface=Interfaces.ASGI, workers=int(sys.argv[2])).serve()
