"""Starts uvicorn with several workers from Python: `python -m run_uvicorn 3 shared_asgi:app`."""

import sys

import uvicorn

if __name__ == "__main__":
    uvicorn.run(sys.argv[2], port=0, workers=int(sys.argv[1]))
