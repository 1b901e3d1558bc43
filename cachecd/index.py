"""The listing of a dataset's source: its units by number, on disk.

A source may have tens of millions of objects, so none of them lives as a Python object: 8 bytes a
unit stay in memory (its size), 16 more while the source is being listed (a digest of its key). The
rest is read from the file where it is asked for; by pread and not by mmap, so that a failing disk
raises an error instead of killing the process.

The file's format is in docs/formats.md. Each `append` is synced before it counts, so a number that
was once given out means the same unit for ever, whatever dies.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cachecd.digests import DigestSet, digests_of
from cachecd.disk import refusing, sync_directory
from cachecd.errors import DiskError
from cachecd.model import ObjectInfo, UnitSlice
from cachecd_client._core import masked_crc32c

VERSION = 1
_MAGIC = b"CACHECDU"
_HEAD = struct.Struct("<8sII8s")  # magic, version, bytes of the source's text, id
_BLOCK = struct.Struct(
    "<8sIIQQI"
)  # id, kind, units, first unit's number, bytes of the body, their CRC
_CRC = struct.Struct("<I")
_ENTRY = np.dtype([("digest", "<u8", 2), ("size", "<u8"), ("end", "<u4"), ("key_bytes", "<u4")])
_UNITS, _FINISHED = 1, 2
_HEADER_BYTES = _BLOCK.size + _CRC.size

# With texts this long, a block's text stays below 2**32 bytes.
_UNITS_A_BLOCK = 1 << 14
_LONGEST_TEXT = 1 << 16


class Index:
    """The units of one source, numbered from 0 in the order in which they were first listed.

    `id` names this numbering and stays across restarts. `complete`: the source was once listed to
    its end. `classes` are the label's class names; a class's id is its place. `total_bytes` sums
    all sizes; `path` is the file. `discarded` says why what lay there before could not be taken
    on, or is empty.

    One thread may append while others read. Methods raise DiskError where the disk fails; the
    index then stays as it was, and the call may be repeated.
    """

    def __init__(self, path: Path, fd: int) -> None:
        """For `open` alone."""
        self.id = ""
        self.complete = False
        self.classes: tuple[str, ...] = ()
        self.total_bytes = 0
        self.discarded = ""
        self.path = path
        self._fd = fd
        self._end = 0  # of the last whole block; what follows is overwritten
        self._length = 0
        self._sizes = np.empty(0, np.int64)  # longer than _length, to grow cheaply
        # Of each block of units: the first unit's number, and where its entries and texts begin.
        self._firsts, self._entries_at, self._texts_at = array("Q"), array("Q"), array("Q")
        self._known: DigestSet | None = None

    @staticmethod
    def open(directory: Path, dataset: str, source: str) -> Index:
        """The index of `dataset` in `directory`, taken on as it was left, or begun.

        A last append that was cut off is forgotten. An index of another `source`, or one whose
        synced part is damaged, is replaced by an empty one with a new id; see `discarded`.
        """
        path = directory / f"{dataset}.units"
        with refusing(f"cannot open the index {path}"):
            directory.mkdir(exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            index = Index(path, os.open(path, flags, 0o640))
            try:
                try:
                    index._load(source)
                except _UnusableError as error:
                    begun = Index(path, index._fd)
                    begun.discarded = str(error)
                    begun._begin(source)
                    return begun
            except BaseException:
                index.close()
                raise
            return index

    def __len__(self) -> int:
        return self._length

    @property
    def allocated(self) -> int:
        """Bytes that the file occupies on disk."""
        with refusing(f"cannot look at the index {self.path}"):
            return os.fstat(self._fd).st_blocks * 512

    def unit(self, number: int) -> UnitSlice:
        """The whole unit `number`; IndexError outside [0, len)."""
        if not 0 <= number < self._length:
            raise IndexError(f"unit {number}, the index of {self.path.stem} has {self._length}")
        block = bisect_right(self._firsts, number) - 1
        nth = number - self._firsts[block]
        # The text begins where that of the unit before it ends.
        before = min(nth, 1)
        at = self._entries_at[block] + (nth - before) * _ENTRY.itemsize
        with refusing(f"cannot read the index {self.path}"):
            entries = np.frombuffer(self._read(at, (1 + before) * _ENTRY.itemsize), _ENTRY)
            entry, begin = entries[-1], int(entries[0]["end"]) if before else 0
            text = self._read(self._texts_at[block] + begin, int(entry["end"]) - begin)
        key_bytes = int(entry["key_bytes"])
        return UnitSlice(
            unit=number,
            key=_decoded(text[:key_bytes]),
            size=int(entry["size"]),
            etag=_decoded(text[key_bytes:]),
        )

    def sizes(self, numbers: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Bytes of each of these units; IndexError if one is outside [0, len)."""
        return self._sizes[: self._length][numbers]

    def cost(self, objects: Sequence[ObjectInfo], classes: Iterable[str] = ()) -> int:
        """At least what append(objects), then finish(classes), will take on disk, in bytes."""
        texts = sum(_most_bytes(o.key) + _most_bytes(o.etag) for o in objects)
        names = sum(12 * len(name) + 4 for name in (*self.classes, *classes))
        headers = (len(objects) // _UNITS_A_BLOCK + 2) * _HEADER_BYTES
        length = texts + len(objects) * _ENTRY.itemsize + headers + names + 2
        with refusing(f"cannot look at the index {self.path}"):
            block = max(4096, os.fstatvfs(self._fd).f_frsize)
        blocks = length // block + 2
        # The file system's map of the file grows too: on ext4, 340 extents take a block.
        return (blocks + blocks // 256 + 4) * block

    def append(self, objects: Sequence[ObjectInfo]) -> int:
        """Gives each object whose key is new the next number; returns how many were new.

        Known keys keep number, size and etag as first listed. When it returns, the new units are
        durable. ValueError, and none of them appended, for a negative size or a key or etag of
        64 KiB or more.
        """
        keys = [_encoded(o.key) for o in objects]
        etags = [_encoded(o.etag) for o in objects]
        for o, key, etag in zip(objects, keys, etags, strict=True):
            if max(len(key), len(etag)) >= _LONGEST_TEXT or not 0 <= o.size < 1 << 63:
                raise ValueError(
                    f"object {o.key[:60]!r} of {o.size} bytes, key of {len(key)} and etag "
                    f"of {len(etag)} bytes; expected a size of at least 0, and key and etag "
                    f"below {_LONGEST_TEXT} bytes"
                )
        if self._known is None:
            self._known = self._read_digests()
        digests = digests_of(keys)
        unknown = np.flatnonzero(~self._known.has(digests)).tolist()
        first_places: dict[bytes, int] = {}
        for place in unknown:
            first_places.setdefault(keys[place], place)
        new = list(first_places.values())
        for start in range(0, len(new), _UNITS_A_BLOCK):
            places = new[start : start + _UNITS_A_BLOCK]
            entries = np.empty(len(places), _ENTRY)
            entries["digest"] = digests[places]
            entries["size"] = [objects[p].size for p in places]
            entries["key_bytes"] = [len(keys[p]) for p in places]
            texts = [keys[p] + etags[p] for p in places]
            entries["end"] = np.cumsum([len(t) for t in texts])
            body_at = self._put(_UNITS, len(places), entries.tobytes() + b"".join(texts))
            self._known.add(digests[places])
            self._take_on(body_at, entries)
        return len(new)

    def finish(self, classes: Iterable[str] = ()) -> None:
        """Marks the listing complete, durably. Known classes keep their ids, new ones follow."""
        merged = tuple(dict.fromkeys((*self.classes, *classes)))
        if not self.complete or merged != self.classes:
            self._put(_FINISHED, 0, json.dumps(merged).encode())
        self.complete, self.classes = True, merged
        self._known = None  # read again when the source is listed again

    def close(self) -> None:
        """Closes the file. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    # --- the file

    def _begin(self, source: str) -> None:
        text = _encoded(source)
        name = secrets.token_bytes(8)
        head = _HEAD.pack(_MAGIC, VERSION, len(text), name) + text
        os.ftruncate(self._fd, 0)
        _write(self._fd, head + _CRC.pack(masked_crc32c(head)), 0)
        os.fsync(self._fd)
        sync_directory(self.path.parent)
        self.id = name.hex()
        self._end = len(head) + _CRC.size

    def _load(self, source: str) -> None:
        """Takes on what the file holds; _UnusableError says why it cannot be."""
        length = os.fstat(self._fd).st_size
        if not length:
            raise _UnusableError("")
        self._load_head(source, length)
        loaded: list[NDArray[np.int64]] = []
        while (found := self._header_at(self._end, length)) is not None:
            kind, units, first, body_bytes, crc = found
            body_at = self._end + _HEADER_BYTES
            # The body is synced before its header is written: it has been whole.
            body = self._read(body_at, body_bytes) if body_at + body_bytes <= length else b""
            if len(body) < body_bytes or masked_crc32c(body) != crc or first != self._length:
                raise _UnusableError(f"the block at byte {self._end} is damaged")
            if kind == _UNITS:
                entries = np.frombuffer(body, _ENTRY, units)
                loaded.append(entries["size"].astype(np.int64))
                self._map_block(body_at, units)
                self._length += units
            else:
                self.complete, self.classes = True, tuple(json.loads(body))
            self._end = body_at + body_bytes
        if self._end < length:
            self._refuse_a_hole(length)
            os.ftruncate(self._fd, self._end)
        self._sizes = np.concatenate([self._sizes, *loaded])
        self.total_bytes = int(self._sizes.sum())

    def _load_head(self, source: str, length: int) -> None:
        head = os.pread(self._fd, _HEAD.size, 0)
        if len(head) < _HEAD.size or not head.startswith(_MAGIC):
            raise _UnusableError("it is not an index")
        _, version, text_bytes, name = _HEAD.unpack(head)
        if version != VERSION:
            raise _UnusableError(f"it has version {version}, expected {VERSION}")
        rest = os.pread(self._fd, min(text_bytes, length) + _CRC.size, _HEAD.size)
        text = rest[:text_bytes]
        if rest[text_bytes:] != _CRC.pack(masked_crc32c(head + text)):
            raise _UnusableError("its head is damaged")
        if text != _encoded(source):
            raise _UnusableError(
                f"it lists another source: {_decoded(text)!r}, expected {source!r}"
            )
        self.id = name.hex()
        self._end = _HEAD.size + text_bytes + _CRC.size

    def _header_at(self, at: int, length: int) -> tuple[int, int, int, int, int] | None:
        """Kind, units, first, body_bytes, crc; None if no whole header of this index is there."""
        header = os.pread(self._fd, _HEADER_BYTES, at)
        if len(header) < _HEADER_BYTES:
            return None
        packed, crc = header[: _BLOCK.size], header[_BLOCK.size :]
        name, *fields = _BLOCK.unpack(packed)
        if name.hex() != self.id or crc != _CRC.pack(masked_crc32c(packed)):
            return None
        kind, units, first, body_bytes, body_crc = fields
        return kind, units, first, body_bytes, body_crc

    def _refuse_a_hole(self, length: int) -> None:
        """_UnusableError if a whole header lies beyond the last whole block: one between is lost.

        An append that was cut off leaves none: its header is the last thing written.
        """
        rest = os.pread(self._fd, length - self._end, self._end)
        at, name = 0, bytes.fromhex(self.id)
        while (at := rest.find(name, at)) >= 0:
            if self._header_at(self._end + at, length) is not None:
                raise _UnusableError(f"the block at byte {self._end} is damaged")
            at += 1

    def _put(self, kind: int, units: int, body: bytes) -> int:
        """Adds a block, durably; where its body begins. On DiskError nothing has changed."""
        packed = _BLOCK.pack(
            bytes.fromhex(self.id), kind, units, self._length, len(body), masked_crc32c(body)
        )
        body_at = self._end + _HEADER_BYTES
        with refusing(f"cannot extend the index {self.path}"):
            try:
                # Allocated first: a full disk shows here, and no file system allocates ahead.
                os.posix_fallocate(self._fd, self._end, _HEADER_BYTES + len(body))
                _write(self._fd, body, body_at)
                os.fdatasync(self._fd)
                _write(self._fd, packed + _CRC.pack(masked_crc32c(packed)), self._end)
                os.fdatasync(self._fd)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, self._end)
                raise
        self._end = body_at + len(body)
        return body_at

    def _map_block(self, body_at: int, units: int) -> None:
        # _firsts last: a reader finds a block by it.
        self._texts_at.append(body_at + units * _ENTRY.itemsize)
        self._entries_at.append(body_at)
        self._firsts.append(self._length)

    def _take_on(self, body_at: int, entries: NDArray[np.void]) -> None:
        """Makes a block that has been written visible to readers."""
        length = self._length + len(entries)
        if length > len(self._sizes):
            grown = np.empty(max(length, 2 * len(self._sizes)), np.int64)
            grown[: self._length] = self._sizes[: self._length]
            self._sizes = grown
        self._sizes[self._length : length] = entries["size"]
        self.total_bytes += int(entries["size"].sum())
        self._map_block(body_at, len(entries))
        self._length = length

    def _read(self, at: int, count: int) -> bytes:
        found = os.pread(self._fd, count, at)
        if len(found) < count:
            raise DiskError(f"{self.path} ends in the middle of what it holds; was it changed?")
        return found

    def _read_digests(self) -> DigestSet:
        known = DigestSet()
        with refusing(f"cannot read the index {self.path}"):
            known.add(np.concatenate([np.empty((0, 2), np.uint64), *self._blocks_of_digests()]))
        return known

    def _blocks_of_digests(self) -> Iterator[NDArray[np.uint64]]:
        for begin, end in zip(self._entries_at, self._texts_at, strict=True):
            yield np.frombuffer(self._read(begin, end - begin), _ENTRY)["digest"]


class _UnusableError(Exception):
    """What lies there cannot be taken on."""


def _encoded(text: str) -> bytes:
    """UTF-8, but for names that are not Unicode and come as lone surrogates."""
    return text.encode("utf-8", "surrogatepass")


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "surrogatepass")


def _most_bytes(text: str) -> int:
    """At least the encoded length, without encoding."""
    return len(text) if text.isascii() else 4 * len(text)


def _write(fd: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, at)
        view, at = view[written:], at + written
