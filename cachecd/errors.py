"""The daemon's errors; their exit codes are those of the command line.

cachecd_client.errors.CachecdError
├── CallerError (exit 2)
│   ├── ConfigError          the configuration is wrong: file, line, column, value, expectation
│   └── LimitTooSmallError   `cache.limit` cannot hold what the configuration asks for
└── WorldError (exit 1)
    ├── SourceError          a source cannot be listed or read
    │   ├── SourceUnreachableError   the store as a whole: network, credentials, bucket
    │   └── UnitError        one object: missing, truncated, undecodable
    ├── NoRoomError          the limit has no room just now; what is evicted makes it
    ├── InUseError           another daemon holds the directory or the socket
    └── DiskError            the cache's file system refuses to work
        ├── NameTakenError   something lies where a new shard is to be
        └── DamagedError     a file under `cache.dir` does not hold what was written into it
"""

from __future__ import annotations

from cachecd_client.errors import CallerError, WorldError


class ConfigError(CallerError):
    """The configuration is wrong; the message is `file:line:column: key: found, expected`."""


class LimitTooSmallError(ConfigError):
    """`cache.limit` cannot hold the configuration; the message gives the figure that would do."""


class SourceError(WorldError):
    """A source cannot be listed or read."""


class SourceUnreachableError(SourceError):
    """The store as a whole does not answer, or does not let us in. Trying again later may help."""


class RewrittenError(SourceError):
    """The source has the objects that were listed before, and most of them have other contents now."""


class UnitError(SourceError):
    """One object cannot be used; the rest of the source can.

    `passing`: for a reason that may pass, so that it is worth another look some other day.
    """

    def __init__(self, message: str = "", *, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing


class NoRoomError(WorldError):
    """Under `cache.limit` there is no room now; what is evicted makes some."""


class InUseError(WorldError):
    """Another daemon owns the cache directory or the socket; the message says which."""


class DiskError(WorldError):
    """The cache's file system refuses: full, read-only, failing, or of a kind that cannot be used."""


class NameTakenError(DiskError):
    """Something that the daemon did not put there has the name of a new shard."""


class DamagedError(DiskError):
    """A file under `cache.dir` does not hold what was written into it; the message names the file."""
