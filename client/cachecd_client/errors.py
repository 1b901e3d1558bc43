"""All errors of a trainer, in one tree: each is a CallerError (the same call fails again) or a WorldError
(the same call may succeed later). Messages say what happened, what was expected, and what to do."""

from __future__ import annotations


class CachecdError(Exception):
    """Base of all errors raised by cachecd and cachecd_client."""


class CallerError(CachecdError):
    """The call or the configuration is wrong; the same call would fail again."""


class UnknownDatasetError(CallerError):
    """The daemon serves no dataset with that name; the message lists its datasets."""


class SchemaError(CallerError, ValueError):
    """A value or a request does not fit the schema; the message names the feature."""


class RequestError(CallerError):
    """The daemon understood the request and refused it; the message has the daemon's reason."""


class SplitChangedError(RequestError):
    """`split` was changed in the daemon's configuration, so the set of the job may have records that are
    now held out. Start the job again."""


class ProtocolVersionError(CallerError):
    """Client and daemon have different major versions of the protocol."""


class WorldError(CachecdError):
    """Something outside the program failed; the same call may succeed later."""


class DaemonUnreachableError(WorldError, ConnectionError):
    """No daemon answers on the socket; the message names the socket and how to start one."""


class UnknownKeyError(WorldError):
    """No object of the dataset has that key; the message has examples of keys."""


class AcquireTimeoutError(WorldError, TimeoutError):
    """No lease within the timeout; the message has the size of the cache and its rate of growth."""


class LeaseLostError(WorldError):
    """The lease's manifest was deleted or replaced before this process could lock it."""


class OtherNodeError(WorldError):
    """Another node of the run could not acquire its set for an epoch; the message names the process."""


class ReplicasDifferError(WorldError):
    """The ranks of a run's processes are invalid, or processes of one rank have different sets, or read
    their set in different orders. The message has a table of all processes."""


class CorruptError(WorldError):
    """Bytes on disk differ from the bytes that were written."""


class CorruptRecordError(CorruptError):
    """A record of a TFRecord file is corrupt.

    `path` is the file, `offset` the byte at which the record's frame starts, `why` the damage (for example
    ``"data CRC is 0x1234abcd, expected 0x9f00e1d2"``).
    """

    def __init__(self, path: str, offset: int, why: str) -> None:
        super().__init__(path, offset, why)
        self.path = path
        self.offset = offset
        self.why = why

    def __str__(self) -> str:
        return f"{self.path}: corrupt record at byte {self.offset}: {self.why}"


class CorruptSidecarError(CorruptError):
    """A shard's sidecar is truncated or damaged, or has an unknown version."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(path, why)
        self.path = path
        self.why = why

    def __str__(self) -> str:
        return f"{self.path}: corrupt sidecar: {self.why}"
