"""Libraries that only one format needs, and that not everybody has installed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from cachecd.errors import ConfigError


@contextlib.contextmanager
def extra(name: str) -> Iterator[None]:
    """Around the import of what the extra `name` installs: ConfigError says how, if it is not there."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "cachecd":
            raise
        raise ConfigError(
            f"this source needs the package {error.name}, which is not installed: "
            f"pip install 'cachecd[{name}]'"
        ) from error
