"""Starts uWSGI, whose package has no command for `python -m`: `python -m run_uwsgi -w shared_wsgi:app`."""

import pyuwsgi  # type: ignore[import-not-found]  # compiled, without stubs

if __name__ == "__main__":
    pyuwsgi.run()
