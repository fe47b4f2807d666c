"""The errors this package raises. `RateLimited`, which carries a verdict, is in `verdict`."""


class RateLimitError(Exception):
    """Base of every error of this package."""


class ConfigError(RateLimitError, ValueError):
    """A limit, rule, path, key or setting is wrong.

    The message names the place (`rules[2].limits[0]`), what was found and what is allowed.
    """

    def at(self, place: str) -> "ConfigError":
        """The same error, seen from one level further out: `at("rules[2]")` puts that before the place."""
        text = str(self)
        joint = "" if text.startswith("[") else "." if _starts_with_place(text) else ": "
        return ConfigError(f"{place}{joint}{text}")


class StoreError(RateLimitError):
    """The store gave no usable answer in time: it is down, slow, full, or answered nonsense."""


def _starts_with_place(text: str) -> bool:
    head = text.split(": ", 1)[0]
    return bool(head) and all(part.split("[", 1)[0].isidentifier() for part in head.split("."))
