"""The listing of a dataset's source: its units by number, on disk.

A source may have tens of millions of objects, so nothing of a unit stays in memory: what is asked
for is read from the file, and the kernel keeps as much of that as it has memory to spare. A block of
some thousand units takes a hundred bytes, and some hundreds more while the source is listed (known.py).

Each append is durable before it counts, so a number that was once given out means the same unit
for ever, whatever dies. The file's format is in docs/formats.md.

A dataset's listings lie side by side, a file each, named after what they list. A start with a mistyped
source begins another one and leaves the old one as it is, so that the next start goes on with it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
import threading
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cachecd.blockfile import HEADER_BYTES, BlockFile, UnusableError, id_of
from cachecd.disk.filesystem import refusing
from cachecd.known import KnownKeys
from cachecd.marks import Marks
from cachecd.model import ObjectInfo, UnitSlice
from cachecd.unittext import MARK, about_of, decoded, encoded, most_bytes, name_of

_ENTRY = np.dtype([("size", "<u8"), ("end", "<u4"), ("key_bytes", "<u4")])
_ONE_ENTRY, _TWO_ENTRIES = struct.Struct("<QII"), struct.Struct("<QIIQII")
_UNITS, _FINISHED, _UNSORTED_UNITS, _GONE = 1, 2, 3, 4

# With texts this long, a block's text stays below 2**32 bytes.
UNITS_A_BLOCK = 1 << 12
_LONGEST_TEXT = 1 << 16
# The first block that may be walked while the listing runs: a page of most stores. Each after it is
# as long as all before it together.
_FIRST_END = 1000
# Listings of a dataset that are kept: today's, the one before a change of the source, and one more for a
# change that was mended by another mistake.
_KEPT = 3
_FILE = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]{0,63})\.[0-9a-f]{16}\.units")


class Index:
    """The units of one source, numbered from 0 in the order in which they were first listed.

    `id` names this numbering and stays across restarts. `num_bytes`: of all units together. `classes` are
    the label's class names; a class's id is its place. `path` is the file. `frontier` is where the listing
    was, in its words, after all that is there; "" where that is not known. `gone` are the units that were
    not there any more when the source was last listed. `discarded` says why what lay there before could
    not be taken on, or is empty.

    One thread may append while others read. Methods raise DiskError where the disk fails; the
    index then stays as it was, and the call may be repeated.
    """

    def __init__(self, file: BlockFile, early: bool) -> None:
        """For `open` alone."""
        self.classes: tuple[str, ...] = ()
        self.num_bytes = 0
        self.frontier = ""
        self.gone = Marks()
        self.discarded = ""
        self._file = file
        self._early = early
        self._length = 0
        self._completed: list[int] = []  # lengths at which it was complete
        # Of each block: its first unit, and where its entries and its texts begin.
        self._firsts: list[int] = []
        self._entries_at: list[int] = []
        self._texts_at: list[int] = []
        self._ascending = bytearray()
        self._known: KnownKeys | None = None
        self._writing = threading.Lock()

    @staticmethod
    def open(directory: Path, dataset: str, source: str, *, early: bool = True) -> Index:
        """The listing of `source` for `dataset`, taken on as it was left, or begun. `early`: its units
        may be walked before the listing is complete.

        A last append that was interrupted is forgotten. A listing whose synced part is damaged is
        replaced by an empty one with a new id; see `discarded`. The listings of other sources that this
        dataset had stay, but no more than three in all: those used last.
        """
        with refusing(f"cannot create the directory {directory}"):
            directory.mkdir(exist_ok=True)
        file = listing_path(directory, dataset, source)
        index = Index._loaded(BlockFile(file), encoded(source), early)
        with refusing(f"cannot look after the listings in {directory}"):
            os.utime(index.path)  # used last
            for path in unused_listings(directory, {index.path}, dataset)[: -(_KEPT - 1)]:
                path.unlink(missing_ok=True)
        return index

    @staticmethod
    def by_id(directory: Path, dataset: str, listing: str) -> Index | None:
        """The listing of this id, to be read alone: a daemon may be appending to it. None if it is not
        there any more, or damaged; DiskError if it cannot be read."""
        for path in unused_listings(directory, (), dataset):
            if id_of(path).hex() == listing:
                with suppress(UnusableError):
                    return Index._loaded(BlockFile(path, read_only=True), None, True)
        return None

    @staticmethod
    def _loaded(file: BlockFile, subject: bytes | None, early: bool) -> Index:
        """What the file has; begun anew about the subject, if that is given and the file is of no use."""
        try:
            index = Index(file, early)
            try:
                index._load(subject)
            except UnusableError as error:
                if subject is None:
                    raise
                file.begin(subject)
                index = Index(file, early)
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
    def source(self) -> str:
        """What was listed, as whoever opened it first named it."""
        return decoded(self._file.subject)

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def allocated(self) -> int:
        """Bytes that the file occupies on disk."""
        return self._file.allocated

    @property
    def complete(self) -> bool:
        """Whether the source was once listed to its end."""
        return bool(self._completed)

    @property
    def ends(self) -> tuple[int, ...]:
        """The ends of the blocks that may be walked: each length at which the listing was complete, and, if
        units may be walked early, lengths between these at doubling distances. An interruption of the
        listing changes no end."""
        ends: list[int] = []
        begin, length = 0, self._length
        for mark in (*self._completed, None):
            end, limit = begin + _FIRST_END, length + 1 if mark is None else mark
            while self._early and end < limit:
                ends.append(end)
                end += end - begin
            if mark is not None:
                ends.append(mark)
                begin = mark
        return tuple(ends)

    def last_key(self) -> str | None:
        """The key after which a listing that was cut off goes on; None if it begins anew, since it
        was complete once, or is not in the order of its keys. Reads some of the file."""
        last = None if self.complete or not len(self) else self._keys().last
        return None if last is None else decoded(last)

    def labelled(self) -> Iterator[tuple[str, str]]:
        """Key and label of each unit, by number. Reads the whole file."""
        for block in range(len(self._firsts)):
            for name, about in self._texts_of(block):
                yield decoded(name.partition(MARK)[0]), decoded(about.partition(MARK)[2])

    def unit(self, number: int) -> UnitSlice:
        """The whole unit `number`; IndexError outside [0, len)."""
        if not 0 <= number < len(self):
            raise IndexError(f"unit {number}, the index of {self.path.stem} has {len(self)}")
        block = bisect_right(self._firsts, number) - 1
        size, name, about = self._texts(block, number - self._firsts[block])
        etag, _, label = about.partition(MARK)
        key, _, begin = name.partition(MARK)
        told = decoded(key), size, decoded(etag)
        return UnitSlice(number, *told, begin=int.from_bytes(begin), label=decoded(label))

    def find(self, *keys: str) -> list[UnitSlice]:
        """All units of the objects of these keys, in one pass. Reads little of the file if it was listed in
        order."""
        wanted, length = sorted(map(encoded, keys)), len(self)
        among = set(wanted)
        numbers: list[int] = []
        for block, first in enumerate(self._firsts):
            if first >= length:  # just being taken on
                break
            least, greatest = self._range_of(block) if self._ascending[block] else (b"", MARK)
            at = bisect_left(wanted, least)
            if at < len(wanted) and wanted[at] <= greatest:
                names = enumerate(self._keys_of(block), first)
                numbers += [n for n, name in names if name.partition(MARK)[0] in among]
        return [self.unit(number) for number in numbers]

    def sizes(self, numbers: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Bytes of each of these units; IndexError if one is outside [0, len)."""
        if not len(numbers):
            return np.zeros(0, np.int64)
        order = np.argsort(numbers)
        ascending = numbers[order]
        if ascending[-1] >= len(self):
            raise IndexError(f"unit {ascending[-1]}, the index of {self.path.stem} has {len(self)}")
        blocks = len(self._firsts)
        firsts, entries_at = (
            np.array(of_all[:blocks], np.uint64) for of_all in (self._firsts, self._entries_at)
        )
        block = firsts.searchsorted(ascending, "right") - 1
        at = entries_at[block] + (ascending - firsts[block]) * np.uint64(_ENTRY.itemsize)
        read = self._file.read
        entries = np.frombuffer(
            b"".join([read(place, _ENTRY.itemsize) for place in at.tolist()]), _ENTRY
        )
        found = np.empty(len(numbers), np.int64)
        found[order] = entries["size"]
        return found

    def _texts(self, block: int, nth: int) -> tuple[int, bytes, bytes]:
        """Size of a block's unit, its name, and what else is known of it."""
        at = self._entries_at[block] + nth * _ENTRY.itemsize
        if nth:  # the text begins where that of the unit before it ends
            entries = self._file.read(at - _ENTRY.itemsize, 2 * _ENTRY.itemsize)
            _, begin, _, size, end, key_bytes = _TWO_ENTRIES.unpack(entries)
        else:
            begin = 0
            size, end, key_bytes = _ONE_ENTRY.unpack(self._file.read(at, _ENTRY.itemsize))
        text = self._file.read(self._texts_at[block] + begin, end - begin)
        return size, text[:key_bytes], text[key_bytes:]

    def cost(
        self, objects: Sequence[ObjectInfo], classes: Iterable[str] = (), frontier: str = ""
    ) -> int:
        """At least what append(objects, frontier), then finish(classes), will take on disk, in bytes;
        all of `objects` must be new."""
        if not objects and self._is_finished(classes):
            return 0
        texts = sum(
            most_bytes(o.key) + most_bytes(o.etag) + most_bytes(o.label) + 10 for o in objects
        )
        names = sum(12 * len(name) + 4 for name in (*self.classes, *classes))
        headers = (len(objects) // UNITS_A_BLOCK + 2) * HEADER_BYTES
        texts += most_bytes(frontier)
        return self._file.cost(texts + len(objects) * _ENTRY.itemsize + headers + names + 2)

    def look(self, objects: Sequence[ObjectInfo]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The number of each, -1 where it has none, and whether it has another size or etag there."""
        numbers = self._keys().find([name_of(o) for o in objects])
        rewritten = np.zeros(len(objects), np.bool_)
        blocks = np.searchsorted(np.array(self._firsts, np.int64), numbers, "right") - 1
        for block in np.unique(blocks[numbers >= 0]).tolist():
            entries, texts = self._block(block)
            for place in np.flatnonzero(blocks == block).tolist():
                nth = int(numbers[place]) - self._firsts[block]
                size, end, key_bytes = entries[nth]
                begin = entries[nth - 1][1] + key_bytes if nth else key_bytes
                about = texts[begin:end].partition(MARK)[0]
                now = objects[place]
                rewritten[place] = size != now.size or about != encoded(now.etag)
        return numbers, rewritten

    def append(
        self, objects: Sequence[ObjectInfo], frontier: str = "", *, again: bool = False
    ) -> int:
        """Gives each unit that is new the next number, or with `again` also those that have one;
        returns how many got one.

        Known ones keep number, size, etag and label as first listed. When it returns, the new units are
        durable, and with them the `frontier`. ValueError, and none of them appended, for a negative size
        or begin, or a key, or etag and label, of 64 KiB or more.
        """
        keys = [name_of(o) for o in objects]
        abouts = [about_of(o) for o in objects]
        for o, key, about in zip(objects, keys, abouts, strict=True):
            if max(len(key), len(about)) >= _LONGEST_TEXT or not 0 <= o.size < 1 << 63:
                raise ValueError(
                    f"object {o.key[:60]!r} of {o.size} bytes, key of {len(key)} and etag "
                    f"of {len(about)} bytes; expected a size of at least 0, and key and etag "
                    f"below {_LONGEST_TEXT} bytes"
                )
        with self._writing:
            known = self._keys()
            unknown = np.flatnonzero(again | (known.find(keys) < 0)).tolist()
            first_places: dict[bytes, int] = {}
            for place in unknown:
                first_places.setdefault(keys[place], place)
            new = list(first_places.values())
            for start in range(0, len(new), UNITS_A_BLOCK):
                places = new[start : start + UNITS_A_BLOCK]
                entries = np.empty(len(places), _ENTRY)
                entries["size"] = [objects[p].size for p in places]
                entries["key_bytes"] = [len(keys[p]) for p in places]
                texts = [keys[p] + abouts[p] for p in places]
                entries["end"] = np.cumsum([len(t) for t in texts])
                last = start + UNITS_A_BLOCK >= len(new)
                texts.append(encoded(frontier) if last else b"")
                self._append_block(known, [keys[p] for p in places], entries, b"".join(texts))
                self.frontier = frontier if last else ""
        return len(new)

    def _append_block(
        self, known: KnownKeys, keys: Sequence[bytes], entries: NDArray[np.void], texts: bytes
    ) -> None:
        # Cut off between two units of an object, a listing cannot go on behind that object.
        ascending = all(a < b for a, b in pairwise(keys)) and not any(MARK in k for k in keys)
        kind = _UNITS if ascending else _UNSORTED_UNITS
        at = self._file.append(kind, len(keys), len(self), entries.tobytes() + texts)
        self._take_on(at, entries, ascending)
        self._known = None  # read anew, if the next line fails
        known.add(min(keys), max(keys), len(keys), ascending)
        self._known = known

    def finish(self, classes: Iterable[str] = ()) -> None:
        """Marks the listing complete, durably. Known classes keep their ids, new ones follow."""
        merged = tuple(dict.fromkeys((*self.classes, *classes)))
        with self._writing:
            if not self._is_finished(merged):
                self._file.append(_FINISHED, 0, len(self), json.dumps(merged).encode())
            self._finished(merged)
            self._known = None  # read again when the source is listed again

    def _finished(self, classes: tuple[str, ...]) -> None:
        if self._completed[-1:] != [len(self)]:
            self._completed.append(len(self))
        self.classes = classes

    def gone_cost(self, numbers: NDArray[np.int64]) -> int:
        """At least what toggle_gone will take on disk, in bytes."""
        return self._file.cost(9 * len(numbers) + 2 * HEADER_BYTES)

    def toggle_gone(self, numbers: NDArray[np.int64]) -> None:
        """These units are gone, or back if they were, durably. Ascending, each once."""
        body = zlib.compress(np.diff(numbers, prepend=0).astype("<u8").tobytes(), 1)
        with self._writing:
            self._file.append(_GONE, 0, len(self), body)
            self.gone.toggle(numbers)

    def _is_finished(self, classes: Iterable[str]) -> bool:
        return self._completed[-1:] == [len(self)] and set(classes) <= set(self.classes)

    def close(self) -> None:
        """Closes the file, after an append that is under way. Idempotent."""
        with self._writing:
            self._file.close()

    def _load(self, source: bytes | None) -> None:
        for kind, units, first, at, body in self._file.load(source):
            if first != len(self):
                raise UnusableError(f"the block at byte {at - HEADER_BYTES} is out of order")
            if kind == _FINISHED:
                self._finished(tuple(json.loads(body)))
            elif kind == _GONE:
                self.gone.toggle(np.cumsum(np.frombuffer(zlib.decompress(body), "<u8").astype(int)))
            else:
                entries = np.frombuffer(body, _ENTRY, units)
                self._take_on(at, entries, kind == _UNITS)
                self.frontier = decoded(body[entries.nbytes + int(entries["end"][-1]) :])

    def _take_on(self, at: int, entries: NDArray[np.void], ascending: bool) -> None:
        """Makes a block that has been written visible to readers: its length last."""
        units = len(entries)
        self._ascending.append(ascending)
        self._texts_at.append(at + units * _ENTRY.itemsize)
        self._entries_at.append(at)
        self._firsts.append(len(self))
        self.num_bytes += int(entries["size"].sum())
        self._length += units

    def _keys(self) -> KnownKeys:
        """Of all units; found out for each listing anew, and forgotten after it."""
        if self._known is None:
            known = KnownKeys(self._keys_of)
            for block, ascending in enumerate(self._ascending):
                known.add(*self._range_of(block), self._units_of(block), bool(ascending))
            self._known = known
        return self._known

    def _range_of(self, block: int) -> tuple[bytes, bytes]:
        """The least and the greatest key of a block."""
        if not self._ascending[block]:
            keys = self._keys_of(block)
            return min(keys), max(keys)
        return self._texts(block, 0)[1], self._texts(block, self._units_of(block) - 1)[1]

    def _units_of(self, block: int) -> int:
        end = self._firsts[block + 1] if block + 1 < len(self._firsts) else len(self)
        return end - self._firsts[block]

    def _keys_of(self, block: int) -> list[bytes]:
        return [name for name, _ in self._texts_of(block)]

    def _texts_of(self, block: int) -> list[tuple[bytes, bytes]]:
        """Of each of a block's units its name, and what else is known of it."""
        entries, texts = self._block(block)
        begins = [0, *(end for _, end, _ in entries[:-1])]
        both = zip(begins, entries, strict=True)
        return [(texts[b : b + n], texts[b + n : end]) for b, (_, end, n) in both]

    def _block(self, block: int) -> tuple[list[tuple[int, int, int]], bytes]:
        """All of a block: its entries and its text."""
        taken = self._units_of(block) * _ENTRY.itemsize
        entries = np.frombuffer(self._file.read(self._entries_at[block], taken), _ENTRY).tolist()
        return entries, self._file.read(self._texts_at[block], entries[-1][1])


def listing_path(directory: Path, dataset: str, source: str) -> Path:
    """Where the listing of a source for a dataset is, or will be."""
    return directory / f"{dataset}.{hashlib.sha256(encoded(source)).hexdigest()[:16]}.units"


def unused_listings(
    directory: Path, used: Collection[Path], dataset: str | None = None
) -> list[Path]:
    """The listings of a dataset, or of all, but for those that are `used`; those of longest ago first."""
    names = {path: _FILE.fullmatch(path.name) for path in directory.iterdir() if path not in used}
    mine = (path for path, name in names.items() if name and dataset in (None, name[1]))
    return sorted(mine, key=lambda path: (path.stat().st_mtime_ns, path.name))


def drop_unused(directory: Path, used: Collection[Path]) -> Path | None:
    """Removes the unused listing of longest ago, of whatever dataset, and says which. DiskError."""
    with refusing(f"cannot look after the listings in {directory}"):
        for path in unused_listings(directory, used)[:1]:
            path.unlink(missing_ok=True)
            return path
    return None
