"""What to install, where a part of this package needs what is not there."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def require(package: str) -> Iterator[None]:
    """Inside, `package` is imported. Raises `ImportError` that says what to install when it cannot be found."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise ImportError(f"this part of ratelimit_mw needs {package}: pip install {package}", name=package) from None
