"""A file that only grows, by blocks that are whole or not there, whatever dies while one is written.

The format is in docs/formats.md. Read with pread and not by mmap, so that a failing disk raises an
error instead of killing the process.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cachecd.disk.filesystem import refusing, sync_directory
from cachecd.errors import DiskError
from cachecd_client._core import masked_crc32c

VERSION = 2
_MAGIC = b"CACHECDU"
_HEAD = struct.Struct("<8sII8s")  # magic, version, bytes of the subject, id
_HEADER = struct.Struct("<8sIIQQI")  # id, kind, units, first, bytes of the body, their CRC
_CRC = struct.Struct("<I")
HEADER_BYTES = _HEADER.size + _CRC.size


class UnusableError(Exception):
    """What lies there cannot be taken on; the message says why."""


class Block(NamedTuple):
    """One block; `kind`, `units` and `first` are the writer's, `at` is where its body begins."""

    kind: int
    units: int
    first: int
    at: int
    body: bytes


class BlockFile:
    """An open block file. Use `load` or `begin` first; then `append` and `read`.

    Both raise DiskError where the disk fails; the file then holds what it held before.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        """Opens `path`, or creates it, empty; `read_only`: beside the one who writes it, for `load` and
        `read` of what is whole by then."""
        self.id = (
            b""  # random, 8 bytes; in every block's header, so that no stray bytes pass for one
        )
        self.path = path
        self.subject = b""  # once it is loaded
        self._read_only = read_only
        self._end = 0  # of the last whole block; what follows is overwritten
        with refusing(f"cannot open {path}"):
            access = os.O_RDONLY if read_only else os.O_RDWR | os.O_CREAT
            self._fd = os.open(path, access | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)

    @property
    def allocated(self) -> int:
        """Bytes that the file occupies on disk."""
        with refusing(f"cannot look at {self.path}"):
            return os.fstat(self._fd).st_blocks * 512

    def cost(self, length: int) -> int:
        """At least what `length` more bytes, headers included, will occupy on disk."""
        with refusing(f"cannot look at {self.path}"):
            block = max(4096, os.fstatvfs(self._fd).f_frsize)
        blocks = length // block + 2
        # The file system's map of the file grows too: on ext4, 340 extents take a block.
        return (blocks + blocks // 256 + 4) * block

    def begin(self, subject: bytes) -> None:
        """Makes it an empty file about `subject`, with a new id, durably."""
        self.id = secrets.token_bytes(8)
        head = _HEAD.pack(_MAGIC, VERSION, len(subject), self.id) + subject
        with refusing(f"cannot begin {self.path}"):
            os.ftruncate(self._fd, 0)
            _write(self._fd, head + _CRC.pack(masked_crc32c(head)), 0)
            os.fsync(self._fd)
            sync_directory(self.path.parent)
        self._end = len(head) + _CRC.size

    def load(self, subject: bytes | None) -> Iterator[Block]:
        """All blocks, in order; then cuts off what an append that was interrupted left, unless this is
        read only: there it may be going on.

        UnusableError if the file is empty, is about something else than `subject` (None: it does not
        matter), is of another version, or is damaged where it was once whole.
        """
        with refusing(f"cannot read {self.path}"):
            length = os.fstat(self._fd).st_size
            self._load_head(subject, length)
            while (header := self._header_at(self._end)) is not None:
                kind, units, first, body_bytes, crc = header
                at = self._end + HEADER_BYTES
                # The body was synced before its header was written: it has been whole.
                body = self.read(at, body_bytes) if at + body_bytes <= length else b""
                if len(body) < body_bytes or masked_crc32c(body) != crc:
                    raise UnusableError(f"the block at byte {self._end} is damaged")
                yield Block(kind, units, first, at, body)
                self._end = at + body_bytes
            if self._end < length and not self._read_only:
                self._refuse_a_hole(length)
                os.ftruncate(self._fd, self._end)

    def append(self, kind: int, units: int, first: int, body: bytes) -> int:
        """Adds a block, durably; where its body begins."""
        header = _HEADER.pack(self.id, kind, units, first, len(body), masked_crc32c(body))
        at = self._end + HEADER_BYTES
        with refusing(f"cannot extend {self.path}"):
            try:
                # Allocated first: a full disk shows here, and no file system allocates ahead.
                os.posix_fallocate(self._fd, self._end, HEADER_BYTES + len(body))
                _write(self._fd, body, at)
                os.fdatasync(self._fd)
                _write(self._fd, header + _CRC.pack(masked_crc32c(header)), self._end)
                os.fdatasync(self._fd)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, self._end)
                raise
        self._end = at + len(body)
        return at

    def read(self, at: int, count: int) -> bytes:
        """`count` bytes from byte `at`."""
        try:  # not `refusing`, which takes twice as long as the read
            found = os.pread(self._fd, count, at)
        except OSError as error:
            raise DiskError(f"cannot read {self.path}: {error.strerror or error}") from error
        if len(found) < count:
            raise DiskError(f"{self.path} ends in the middle of what it held; was it changed?")
        return found

    def close(self) -> None:
        """Closes the file. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _load_head(self, subject: bytes | None, length: int) -> None:
        head = os.pread(self._fd, _HEAD.size, 0)
        if not head:
            raise UnusableError("")
        if len(head) < _HEAD.size or not head.startswith(_MAGIC):
            raise UnusableError("it is not an index")
        _, version, subject_bytes, self.id = _HEAD.unpack(head)
        if version != VERSION:
            raise UnusableError(f"it has version {version}, expected {VERSION}")
        rest = os.pread(self._fd, min(subject_bytes, length) + _CRC.size, _HEAD.size)
        found = rest[:subject_bytes]
        if rest[subject_bytes:] != _CRC.pack(masked_crc32c(head + found)):
            raise UnusableError("its head is damaged")
        self.subject = found
        if subject is not None and found != subject:
            raise UnusableError(
                f"it lists another source: {found.decode('utf-8', 'replace')!r}, "
                f"expected {subject.decode('utf-8', 'replace')!r}"
            )
        self._end = len(head) + len(rest)

    def _header_at(self, at: int) -> tuple[int, int, int, int, int] | None:
        """kind, units, first, body_bytes, crc; None if no whole header of this file is there."""
        found = os.pread(self._fd, HEADER_BYTES, at)
        header, crc = found[: _HEADER.size], found[_HEADER.size :]
        if len(found) < HEADER_BYTES or crc != _CRC.pack(masked_crc32c(header)):
            return None
        name, kind, units, first, body_bytes, body_crc = _HEADER.unpack(header)
        return (kind, units, first, body_bytes, body_crc) if name == self.id else None

    def _refuse_a_hole(self, length: int) -> None:
        """UnusableError if a whole header lies beyond the last whole block: one between is lost.

        An append that was interrupted leaves none: its header is the last thing written.
        """
        rest = os.pread(self._fd, length - self._end, self._end)
        at = 0
        while (at := rest.find(self.id, at)) >= 0:
            if self._header_at(self._end + at) is not None:
                raise UnusableError(f"the block at byte {self._end} is damaged")
            at += 1


def _write(fd: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, at)
        view, at = view[written:], at + written


def id_of(path: Path) -> bytes:
    """The id that the file's head has, b"" if it has none; what follows the head is not looked at."""
    with refusing(f"cannot read {path}"), open(path, "rb") as file:
        head = file.read(_HEAD.size)
    whole = len(head) == _HEAD.size and head.startswith(_MAGIC)
    return _HEAD.unpack(head)[3] if whole else b""
