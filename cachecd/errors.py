"""The daemon's errors. The command line exits with 2 on a CallerError, and with 1 on a WorldError."""

from __future__ import annotations

from cachecd_client.errors import CallerError, WorldError


class ConfigError(CallerError):
    """The configuration is wrong. The message is `file:line:column: key: found, expected`."""


class LimitTooSmallError(ConfigError):
    """`cache.limit` is too small for the configuration. The message names a sufficient limit."""


class SourceError(WorldError):
    """A source cannot be listed or read."""


class SourceUnreachableError(SourceError):
    """The store does not reply, or refuses access, so no object can be read. A later try may succeed."""


class RewrittenError(SourceError):
    """Most of the objects that were listed before now have other contents."""


class UnitError(SourceError):
    """One object cannot be used: it is missing, is truncated, or cannot be decoded. Other objects are
    usable.

    `passing`: a try on another day may succeed.
    """

    def __init__(self, message: str = "", *, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing


class RecordError(UnitError):
    """One record cannot be used, but the other records of the unit can. `sample`: the name of the record in
    the unit, if it has a name."""

    def __init__(self, message: str = "", sample: str = "") -> None:
        super().__init__(message)
        self.sample = sample


class InUseError(WorldError):
    """Another daemon owns the cache directory or the socket. The message names the daemon."""


class DiskError(WorldError):
    """The cache's file system is full, read-only, failing or unsuitable."""


class NameTakenError(DiskError):
    """A file that the daemon did not write has the name of a new shard."""


class DamagedError(DiskError):
    """A file under `cache.dir` does not have the content that was written. The message names the file."""


class LostError(DamagedError):
    """The sidecar of a shard is damaged or missing, so the shard is lost. The message names the sidecar."""
