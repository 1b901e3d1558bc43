"""The listing of a dataset's source: its units by number, on disk.

A source may have tens of millions of objects, so none of them lives as a Python object: 8 bytes a
unit stay in memory (its size), 16 more while the source is being listed (a digest of its key). The
rest is read from the file where it is asked for.

Each append is durable before it counts, so a number that was once given out means the same unit
for ever, whatever dies. The file's format is in docs/formats.md.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cachecd.blockfile import HEADER_BYTES, BlockFile, UnusableError
from cachecd.digests import DigestSet, digests_of
from cachecd.disk import refusing
from cachecd.model import ObjectInfo, UnitSlice

_ENTRY = np.dtype([("digest", "<u8", 2), ("size", "<u8"), ("end", "<u4"), ("key_bytes", "<u4")])
_UNITS, _FINISHED = 1, 2

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

    def __init__(self, file: BlockFile) -> None:
        """For `open` alone."""
        self.complete = False
        self.classes: tuple[str, ...] = ()
        self.total_bytes = 0
        self.discarded = ""
        self._file = file
        self._length = 0
        self._sizes = np.empty(0, np.int64)  # longer than _length, to grow cheaply
        # Of each block of units: the first unit's number, and where its entries and texts begin.
        self._firsts, self._entries_at, self._texts_at = array("Q"), array("Q"), array("Q")
        self._known: DigestSet | None = None

    @staticmethod
    def open(directory: Path, dataset: str, source: str) -> Index:
        """The index of `dataset` in `directory`, taken on as it was left, or begun.

        A last append that was interrupted is forgotten. An index of another `source`, or one whose
        synced part is damaged, is replaced by an empty one with a new id; see `discarded`.
        """
        with refusing(f"cannot create the directory {directory}"):
            directory.mkdir(exist_ok=True)
        file = BlockFile(directory / f"{dataset}.units")
        try:
            index = Index(file)
            try:
                index._load(_encoded(source))
            except UnusableError as error:
                file.begin(_encoded(source))
                index = Index(file)
                index.discarded = str(error)
        except BaseException:
            file.close()
            raise
        return index

    def __len__(self) -> int:
        return self._length

    @property
    def id(self) -> str:
        return self._file.id.hex()

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def allocated(self) -> int:
        """Bytes that the file occupies on disk."""
        return self._file.allocated

    def unit(self, number: int) -> UnitSlice:
        """The whole unit `number`; IndexError outside [0, len)."""
        if not 0 <= number < self._length:
            raise IndexError(f"unit {number}, the index of {self.path.stem} has {self._length}")
        block = bisect_right(self._firsts, number) - 1
        nth = number - self._firsts[block]
        # The text begins where that of the unit before it ends.
        before = min(nth, 1)
        at = self._entries_at[block] + (nth - before) * _ENTRY.itemsize
        entries = np.frombuffer(self._file.read(at, (1 + before) * _ENTRY.itemsize), _ENTRY)
        entry, begin = entries[-1], int(entries[0]["end"]) if before else 0
        text = self._file.read(self._texts_at[block] + begin, int(entry["end"]) - begin)
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
        """At least what append(objects), then finish(classes), will take on disk, in bytes; all of
        `objects` must be `new`."""
        if not objects and self.complete and set(classes) <= set(self.classes):
            return 0
        texts = sum(_most_bytes(o.key) + _most_bytes(o.etag) for o in objects)
        names = sum(12 * len(name) + 4 for name in (*self.classes, *classes))
        headers = (len(objects) // _UNITS_A_BLOCK + 2) * HEADER_BYTES
        return self._file.cost(texts + len(objects) * _ENTRY.itemsize + headers + names + 2)

    def new(self, objects: Sequence[ObjectInfo]) -> list[ObjectInfo]:
        """Those whose keys have no number yet."""
        known = self._digests().has(digests_of([_encoded(o.key) for o in objects]))
        return [o for o, has in zip(objects, known.tolist(), strict=True) if not has]

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
        known, digests = self._digests(), digests_of(keys)
        unknown = np.flatnonzero(~known.has(digests)).tolist()
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
            body = entries.tobytes() + b"".join(texts)
            at = self._file.append(_UNITS, len(places), self._length, body)
            known.add(digests[places])
            self._take_on(at, entries)
        return len(new)

    def finish(self, classes: Iterable[str] = ()) -> None:
        """Marks the listing complete, durably. Known classes keep their ids, new ones follow."""
        merged = tuple(dict.fromkeys((*self.classes, *classes)))
        if not self.complete or merged != self.classes:
            self._file.append(_FINISHED, 0, self._length, json.dumps(merged).encode())
        self.complete, self.classes = True, merged
        self._known = None  # read again when the source is listed again

    def close(self) -> None:
        """Closes the file. Idempotent."""
        self._file.close()

    def _load(self, source: bytes) -> None:
        loaded: list[NDArray[np.int64]] = []
        for kind, units, first, at, body in self._file.load(source):
            if first != self._length:
                raise UnusableError(f"the block at byte {at - HEADER_BYTES} is out of order")
            if kind == _UNITS:
                loaded.append(np.frombuffer(body, _ENTRY, units)["size"].astype(np.int64))
                self._map_block(at, units)
                self._length += units
            else:
                self.complete, self.classes = True, tuple(json.loads(body))
        self._sizes = np.concatenate([self._sizes, *loaded])
        self.total_bytes = int(self._sizes.sum())

    def _map_block(self, at: int, units: int) -> None:
        # _firsts last: a reader finds a block by it.
        self._texts_at.append(at + units * _ENTRY.itemsize)
        self._entries_at.append(at)
        self._firsts.append(self._length)

    def _take_on(self, at: int, entries: NDArray[np.void]) -> None:
        """Makes a block that has been written visible to readers."""
        length = self._length + len(entries)
        if length > len(self._sizes):
            grown = np.empty(max(length, 2 * len(self._sizes)), np.int64)
            grown[: self._length] = self._sizes[: self._length]
            self._sizes = grown
        self._sizes[self._length : length] = entries["size"]
        self.total_bytes += int(entries["size"].sum())
        self._map_block(at, len(entries))
        self._length = length

    def _digests(self) -> DigestSet:
        """Of all keys; read from the file for each listing anew, and forgotten after it."""
        if self._known is None:
            self._known = self._read_digests()
        return self._known

    def _read_digests(self) -> DigestSet:
        blocks = [
            np.frombuffer(self._file.read(begin, end - begin), _ENTRY)["digest"]
            for begin, end in zip(self._entries_at, self._texts_at, strict=True)
        ]
        known = DigestSet()
        known.add(np.concatenate([np.empty((0, 2), np.uint64), *blocks]))
        return known


def _encoded(text: str) -> bytes:
    """UTF-8, but for names that are not Unicode and come as lone surrogates."""
    return text.encode("utf-8", "surrogatepass")


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "surrogatepass")


def _most_bytes(text: str) -> int:
    """At least the encoded length, without encoding."""
    return len(text) if text.isascii() else 4 * len(text)
