"""The daemon's errors; their exit codes are those of the command line.

cachecd_client.errors.CachecdError
├── CallerError (exit 2)
│   ├── ConfigError          the configuration is wrong: file, line, column, value, expectation
│   └── LimitTooSmallError   `cache.limit` cannot hold the configuration
└── WorldError (exit 1)
    ├── SourceError          a source cannot be listed or read
    │   ├── SourceUnreachableError   the whole store: network, credentials, bucket
    │   └── UnitError        one object: missing, truncated, undecodable
    │       └── RecordError  one record of an object
    ├── InUseError           another daemon holds the directory or the socket
    └── DiskError            the cache's file system refuses to work
        ├── NameTakenError   another file has the name of a new shard
        └── DamagedError     a file under `cache.dir` is damaged
            └── LostError    a shard's sidecar is damaged or missing
"""

from __future__ import annotations

from cachecd_client.errors import CallerError, WorldError


class ConfigError(CallerError):
    """The configuration is wrong; the message is `file:line:column: key: found, expected`."""


class LimitTooSmallError(ConfigError):
    """`cache.limit` cannot hold the configuration; the message names a sufficient limit."""


class SourceError(WorldError):
    """A source cannot be listed or read."""


class SourceUnreachableError(SourceError):
    """The whole store does not answer, or refuses access. A later try may succeed."""


class RewrittenError(SourceError):
    """Most of the objects that were listed before have other contents now."""


class UnitError(SourceError):
    """One object cannot be used; other objects of the source can.

    `passing`: the reason may pass, so that a try on another day may succeed.
    """

    def __init__(self, message: str = "", *, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing


class RecordError(UnitError):
    """One record cannot be used; the other records of its unit can. `sample`: its name within the unit, if
    it has one."""

    def __init__(self, message: str = "", sample: str = "") -> None:
        super().__init__(message)
        self.sample = sample


class InUseError(WorldError):
    """Another daemon owns the cache directory or the socket; the message names the daemon."""


class DiskError(WorldError):
    """The cache's file system refuses: full, read-only, failing, or of a kind that cannot be used."""


class NameTakenError(DiskError):
    """A file that the daemon did not write has the name of a new shard."""


class DamagedError(DiskError):
    """A file under `cache.dir` does not have the content that was written; the message names the file."""


class LostError(DamagedError):
    """The sidecar of a shard is damaged or missing, so the shard is lost; the message names the sidecar."""
