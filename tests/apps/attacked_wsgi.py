"""A WSGI app that trusts a proxy on this machine, in the framework that FACE names."""

import os

from web.faces import WSGI

app = WSGI[os.environ["FACE"]]({"limits": "3/hour", "key": "ip", "trusted_proxies": ["127.0.0.1"]})
