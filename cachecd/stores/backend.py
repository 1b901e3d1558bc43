"""The interface of every kind of store: a listing, and reads that make a single attempt. Decides which
names every listing omits."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from typing_extensions import Buffer

from cachecd.errors import SourceError, SourceUnreachableError, UnitError
from cachecd.model import ObjectInfo
from cachecd.quantities import printable

PAGE = 1000  # entries of a listing handed over at a time
OF_ZARR = ("zarr.json", ".zarray", ".zgroup")  # a zarr folder has one of these files
ZARR_ABOVE = (
    "the url names a zarr folder itself, expected the folder above it: choose the zarr folder by "
    "options: {match: NAME.zarr}"
)
_SHORTAGES: tuple[int, ...] = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_EXAMPLES, _LONGEST = 3, 100  # of each omitted kind: examples, and characters of an example
_HIDDEN = re.compile(  # in "/" + key
    r"/(?:\.(?!\.?(?:/|\Z)|z(?:array|attrs|group|metadata)\Z)|(?:_temporary|_delta_log|_spark_metadata|__MACOSX)/"
    r"|_(?:SUCCESS|metadata|common_metadata|(?:started|committed)_[^/]*)\Z)"
)
_TABLE = re.compile(
    r"((?:[^/]*/)*?)(?:(?P<Delta>_delta_log/)|(?P<Iceberg>metadata/[^/]+\.metadata\.json\Z))"
)


class TransientError(SourceError):
    """One attempt failed; the next attempt may succeed.

    `throttled`: the store wants fewer requests, so the object is not at fault. `after`: the seconds to
    wait, or 0 if the store does not report them. `denied`: an early retry will probably fail.
    """

    def __init__(
        self, reason: str, throttled: bool = False, after: float = 0.0, denied: bool = False
    ) -> None:
        super().__init__(reason)
        self.throttled = throttled
        self.after = after
        self.denied = denied


class SlowError(TransientError):
    """One attempt was slower than any working link."""


class NotPartialError(TransientError):
    """The store has the object, but sent all of it instead of the requested part."""


class NoSizeError(TransientError):
    """The store's reply does not have the object's size."""


class GoneError(UnitError):
    """The store does not have the object. If it has no object at all, the URL is wrong."""


def is_shortage(error: BaseException | None) -> bool:
    """Whether this process caused the error, because it lacks descriptors, memory or processes. Then
    neither the store nor the unit is at fault, and a retry in this process does not help."""
    try:
        # Some libraries do not report the errno, so try to open a file.
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as own:
        error = own
    shortages = (*_SHORTAGES, errno.EAGAIN)  # EAGAIN: fork reached the limit of processes
    while error is not None:
        if isinstance(error, TransientError):
            shortages = _SHORTAGES  # stores do not fork: here EAGAIN only means "try again"
        if isinstance(error, OSError) and error.errno in shortages:
            return True
        if isinstance(error, RuntimeError) and str(error) == "can't start new thread":
            return True
        error = error.__cause__ or error.__context__
    return False


def is_hidden(key: str) -> bool:
    """Whether every listing omits this name. It omits names with a part that begins with a dot, except
    `.`, `..` and the files of zarr. It omits markers and logs of common writers. The name of a folder
    ends in a slash."""
    return _HIDDEN.search(f"/{key}") is not None or key.endswith("_$folder$")


@dataclass
class LeftOut:
    """Counts the objects that listings of all stores and formats omit: hidden names, and objects without
    bytes. A listing that continues counts no key twice.

    `kinds`: kind -> number and first examples. `table`: the first table that the names show. `last`: the
    greatest counted key. `before`: `last` when this attempt began.
    """

    kinds: dict[str, tuple[int, list[str]]] = field(default_factory=dict)
    table: str = ""
    last: str = ""
    before: str = ""

    def begin(self, after: str) -> None:
        """Notes that a listing begins, or continues after this key."""
        if not after:
            vars(self).update(vars(LeftOut()))
        self.before = self.last

    def keeps(self, key: str, is_empty: bool, is_wanted: bool = True) -> bool:
        """Whether the listing keeps this object. Counts an omitted object if `is_wanted`."""
        kind = "hidden name" if is_hidden(key) else "empty object" if is_empty else ""
        if (kind or key.endswith(".json")) and (table := _TABLE.match(key)):
            self.table = (
                self.table or f"table of {table.lastgroup} in {printable(table[1]) or 'it'}"
            )
        if kind and is_wanted and key > self.before:
            self.last = max(self.last, key)
            count, examples = self.kinds.get(kind, (0, []))
            examples = [*examples, printable(key[:_LONGEST])][:_EXAMPLES]
            self.kinds[kind] = count + 1, examples
        return is_wanted and not kind

    def __str__(self) -> str:
        return ", ".join(
            f"{count} {kind}{'' if count == 1 else 's'} ({', '.join(examples)}"
            f"{', ...' if count > _EXAMPLES else ''})"
            for kind, (count, examples) in sorted(self.kinds.items(), reverse=True)
        )

    @property
    def warning(self) -> str:
        """Returns a warning if the source has a table, whose objects may have deleted rows, else ""."""
        return self.table and (
            f"the source has a {self.table}: its objects still hold rows that were deleted or replaced. "
            "Set source.manifest to a list of the table's current files (docs/sources.md, Manifests)"
        )


def resized(actual: int, listed: int) -> UnitError:
    """Returns the error for an object whose size differs from its listed size."""
    return UnitError(f"the object has {actual} bytes, {listed} were listed: it changed since")


class Backend(Protocol):
    """One kind of store. Every failure is one of three errors, which contain no credentials.

    TransientError: try again. UnitError: this object can never be read. SourceUnreachableError: nothing can
    be read until a person acts; the message says what to do.
    """

    where: str  # the name of the source in messages

    def list(self, start_after: str = "") -> Iterator[list[ObjectInfo]]:
        """Yields objects in pages, with keys relative to the source's URL. With `start_after`, yields
        only greater keys, compared by bytes. A page may be empty. Blocks: call it in a thread.
        """

    def glimpse(self) -> Sequence[ObjectInfo]:
        """Returns a few objects from the beginning of the listing, in one attempt. Blocks."""
        return next(self.list(), [])

    async def read(self, key: str, start: int, stop: int, size: int | None, etag: str) -> Buffer:
        """Returns bytes [start, stop) of an object that was listed with `size` bytes, or fewer if the
        object is shorter.

        Keeps at most one byte beyond `size`, even if the store sends more. UnitError if the object does
        not have `size` bytes (None: any size), or if the store reports another ETag than `etag` before
        the body ("": any ETag). GoneError if the object does not exist.
        """

    async def find(self, key: str) -> ObjectInfo:
        """Returns the object as a listing would show it now. GoneError if it does not exist."""

    async def tail(self, key: str, length: int, etag: str) -> tuple[int, Buffer]:
        """Returns an object's size and its last `length` bytes, or all bytes of a shorter object. Raises
        the errors of `read`. An empty object may raise UnitError."""


class Nowhere(Backend):
    """The store of a source without a URL, whose reader finds the data itself."""

    where = "a source without a url"

    def list(self, start_after: str = "") -> Iterator[list[ObjectInfo]]:
        raise SourceUnreachableError("a source without a url has no objects: set the url")

    async def _refuse(self, *_: Any) -> Any:
        self.list()

    find = read = tail = _refuse  # type: ignore[assignment]
