"""Imports libraries that only one format, step or command needs: the extras of the distribution."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from cachecd.errors import ConfigError


@contextlib.contextmanager
def extra(name: str, user: str) -> Iterator[None]:
    """Wraps an import from the extra `name`, which `user` needs. If the library is missing, ConfigError
    says how to install it."""
    try:
        yield
    except (ImportError, OSError) as error:  # OSError: a library of the system is missing
        if (getattr(error, "name", None) or "").partition(".")[0] == "cachecd":
            raise
        raise ConfigError(f"{user}: {error}: pip install 'cachecd[{name}]'") from error
