"""A request without a framework, for tests of code that needs none."""

from collections.abc import Mapping, Sequence

from ratelimit_mw.http.request import Request


class PlainRequest(Request):
    """Returns the values that were passed to it."""

    def __init__(
        self,
        path: str = "/",
        method: str = "GET",
        *,
        client: str | None = "192.0.2.1",
        headers: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> None:
        super().__init__(None, client)
        self._path, self._method, self._user = path, method, user
        self._headers = headers or {}

    @property
    def method(self) -> str:
        return self._method

    @property
    def path(self) -> str:
        return self._path

    @property
    def headers(self) -> Mapping[str, str]:
        return self._headers

    def header_lines(self, name: str) -> Sequence[str]:
        return [self._headers[name]] if name in self._headers else []

    @property
    def user(self) -> str | None:
        return self._user
