"""Runs a development server on a free port: `python -m developing wsgiref|werkzeug module:app`."""

import importlib
import sys
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler
from wsgiref.simple_server import make_server as make_wsgiref

from werkzeug.serving import WSGIRequestHandler as WerkzeugHandler
from werkzeug.serving import make_server as make_werkzeug


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


class QuietWerkzeug(WerkzeugHandler):
    def log(self, *_: Any) -> None:
        pass


def main(kind: str, name: str) -> None:
    module, _, attribute = name.partition(":")
    app = getattr(importlib.import_module(module), attribute)
    server: Any
    if kind == "wsgiref":
        server = make_wsgiref("127.0.0.1", 0, app, handler_class=Quiet)
    else:
        server = make_werkzeug("127.0.0.1", 0, app, request_handler=QuietWerkzeug)
    sys.stdout.write(f"Serving on http://127.0.0.1:{server.server_port}\n")
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
