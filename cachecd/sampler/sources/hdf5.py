"""HDF5 datasets: h5py says where rows lie, and decodes chunks that our store fetches.

A contiguous dataset is read by byte range without h5py. Whatever h5py does, it holds a lock that all
threads need that use it, be it to collect garbage: so it must never wait for the network. It is given
the bytes that are here; where it asks for others it fails, they are fetched, and it begins again.
"""

from __future__ import annotations

import asyncio
import io
import math
import posixpath
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from numpy.typing import NDArray
from typing_extensions import Buffer

from cachecd.config.array import ArrayFile
from cachecd.errors import ConfigError, UnitError
from cachecd.sampler.ahead import PIECE
from cachecd.sampler.sources.arrays import LARGEST, Array, Flat, Layout, layout_of, shown
from cachecd.sampler.sources.content import Content

try:
    import h5py
except ImportError as missing:
    raise ConfigError(
        f"HDF5 files need a package ({missing}): pip install 'cachecd[hdf5]'"
    ) from missing

_BLOCK = 64 << 10  # metadata is read in blocks of so many bytes, and many of them are kept
_BLOCKS = 256
_MOST_TRIES = 1000  # each for one more block
_MOST_NAMES = 1000  # that are looked at for the only dataset of a file
_MOST_LINKS = 16
_THREAD = ThreadPoolExecutor(1, "hdf5")
_Found = TypeVar("_Found")


async def open_hdf5(file: ArrayFile, key: str, size: int, etag: str, content: Content) -> Array:
    """The dataset at `file.path`, or the only one, of the object `key` of `size` bytes, of the version
    `etag` if that is given. UnitError."""
    opened = _Open(file, key, size, etag)
    try:
        layout, at = await opened.do(content, opened.layout)
    except BaseException:
        opened.close()
        raise
    if at is None:
        return Chunked(layout, opened)
    opened.close()
    end = at + layout.rows * layout.row_bytes
    if end > size:
        raise UnitError(f"truncated: the object has {size} bytes, its dataset ends at {end}")
    return Flat(key, layout, at, etag)


class Chunked:
    """Rows of a dataset that only h5py can put together."""

    at: int | None = None

    def __init__(self, layout: Layout, opened: _Open) -> None:
        self.layout = layout
        self._opened = opened

    async def rows(self, content: Content, start: int, stop: int) -> NDArray[Any]:
        opened = self._opened
        async with opened.using:
            places = await opened.do(content, lambda dataset: _places(dataset, start, stop))
            await opened.fetch(content, places)
            try:
                found: NDArray[Any] = await opened.do(content, lambda dataset: dataset[start:stop])
            finally:
                opened.forget()
        return found.view(self.layout.stored) if self.layout.dtype == "bfloat16" else found

    def close(self) -> None:
        self._opened.close()


class _Open:
    """An open file and the dataset in it. What begins with "in the thread" is called by `do`."""

    def __init__(self, file: ArrayFile, key: str, size: int, etag: str) -> None:
        self._path = file.path
        self._spec = file
        self._version = key, etag
        self._bytes = _Bytes(size)
        self._file: Any = None
        self._dataset: Any = None
        self.using = asyncio.Lock()

    async def do(self, content: Content, work: Callable[[Any], _Found]) -> _Found:
        """The result of `work` on the dataset, in the thread, with bytes that `content` gives."""
        for _ in range(_MOST_TRIES):
            loop = asyncio.get_running_loop()
            found, failure, missing = await loop.run_in_executor(_THREAD, self._try, work)
            if missing is not None:
                self._bytes.keep(missing, await content.read(*missing, *self._version))
            elif failure is not None:
                raise failure
            else:
                return found  # type: ignore[return-value]
        raise UnitError(f"h5py asked for {_MOST_TRIES} blocks of metadata: is the file sound?")

    def _try(
        self, work: Callable[[Any], _Found]
    ) -> tuple[_Found | None, UnitError | None, tuple[int, int] | None]:
        """In the thread: the result, or why there is none, or which bytes are missing."""
        self._bytes.begin()
        # What is raised refers to h5py's objects by its traceback: none of it leaves the thread.
        try:
            if self._dataset is None:
                self._file = h5py.File(self._bytes, "r")
                self._dataset = self._find()
            return work(self._dataset), None, None
        except Exception as error:
            self._close()
            if self._bytes.missing is not None:
                return None, None, self._bytes.missing
            if isinstance(error, UnitError):
                return None, UnitError(str(error)), None
            told = shown(f"{type(error).__name__}: {error}")
            return None, UnitError(f"h5py cannot read it: {told}"), None

    def _find(self) -> Any:
        path = self._only() if self._path is None else self._path
        found = _follow(self._file, path)
        if not isinstance(found, h5py.Dataset):
            raise UnitError(f"{path!r} is no dataset: name one by array.path")
        if found.is_virtual or found.external:
            raise UnitError(f"{path!r} lies in other files, which are not read")
        if found.shape is None:
            raise UnitError(f"{path!r} is empty")
        return found

    def layout(self, found: Any) -> tuple[Layout, int | None]:
        """In the thread: and where the rows begin, if they lie there one after the other."""
        descr = found.dtype.str if found.dtype.names is None else "a compound"
        layout = layout_of(tuple(found.shape), descr, self._spec, repr(found.name))
        at: int | None = found.id.get_offset()
        if at is not None or found.chunks is None:
            return layout, at
        if (held := math.prod(found.chunks) * layout.stored.itemsize) > LARGEST:
            raise UnitError(f"its chunks have {held} bytes each, expected at most {LARGEST}")
        pairs = zip(found.shape[1:], found.chunks[1:], strict=True)
        across = math.prod(-(-n // chunk) for n, chunk in pairs)
        rows = found.chunks[0]
        return Layout(layout.rows, layout.shape, layout.stored, layout.dtype, rows, across), None

    def _only(self) -> str:
        names: list[str] = []
        seen = 0

        def look(name: str, found: Any) -> bool | None:
            nonlocal seen
            seen += 1
            if isinstance(found, h5py.Dataset):
                names.append(name)
            return True if seen >= _MOST_NAMES else None

        self._file.visititems(look)
        if len(names) != 1 or seen >= _MOST_NAMES:
            more = f": {shown(', '.join(names))}" if names else ""
            raise UnitError(
                f"the file has {len(names)} datasets{more}; name the one to read by array.path"
            )
        return names[0]

    async def fetch(self, content: Content, places: list[tuple[int, int]]) -> None:
        """Has the bytes of these places ready for the next reads, many requests at a time."""
        merged: list[list[int]] = []
        for start, stop in places:
            if not 0 <= stop - start <= LARGEST or stop > self._bytes.size:
                raise UnitError(
                    f"a chunk is said to lie in bytes {start} to {stop}, behind the end"
                )
            if merged and start - merged[-1][1] <= _BLOCK and stop - merged[-1][0] <= PIECE:
                merged[-1][1] = max(merged[-1][1], stop)
            else:
                merged.append([start, stop])
        parts = await asyncio.gather(*(content.read(a, b, *self._version) for a, b in merged))
        self._bytes.ready = [
            (start, memoryview(part)) for (start, _), part in zip(merged, parts, strict=True)
        ]

    def forget(self) -> None:
        """What was fetched is not needed any more."""
        self._bytes.ready = []

    def close(self) -> None:
        """Idempotent."""
        _THREAD.submit(self._close)

    def _close(self) -> None:
        self._file = self._dataset = None


def _follow(group: Any, path: str) -> Any:
    """The object at a path, through links within the file alone: a link may name another file, of
    this machine."""
    links = 0
    names = [name for name in path.split("/") if name]
    at, found = "/", group["/"]
    while names:
        name = names.pop(0)
        link = found.get(name, getlink=True) if isinstance(found, h5py.Group) else None
        if isinstance(link, h5py.SoftLink):
            links += 1
            if links > _MOST_LINKS:
                raise UnitError(f"{path!r} leads through more than {_MOST_LINKS} links")
            target = posixpath.join(at, link.path)
            names = [n for n in target.split("/") if n] + names
            at, found = "/", group["/"]
        elif isinstance(link, h5py.HardLink):
            at, found = posixpath.join(at, name), found[name]
        elif isinstance(link, h5py.ExternalLink):
            raise UnitError(f"{path!r} leads into another file, {link.filename!r}: not followed")
        else:
            raise UnitError(f"there is no {path!r} in the file")
    return found


def _places(dataset: Any, start: int, stop: int) -> list[tuple[int, int]]:
    """Which bytes rows [start, stop) are stored in, as far as it can be told."""
    found: list[tuple[int, int]] = []
    if dataset.chunks is None:
        return found
    for corner in _corners(dataset.shape, dataset.chunks, start, stop):
        about = dataset.id.get_chunk_info_by_coord(corner)
        if about.byte_offset is not None:
            found.append((about.byte_offset, about.byte_offset + about.size))
    return sorted(found)


def _corners(
    shape: tuple[int, ...], chunks: tuple[int, ...], start: int, stop: int
) -> list[tuple[int, ...]]:
    """Where the chunks begin that hold these rows."""
    found: list[tuple[int, ...]] = [
        (row,) for row in range(start - start % chunks[0], stop, chunks[0])
    ]
    for length, chunk in zip(shape[1:], chunks[1:], strict=True):
        found = [(*corner, at) for corner in found for at in range(0, length, chunk)]
    return found


class _Bytes(io.RawIOBase):
    """Those bytes of an object that are here, as h5py reads a file; reading others fails."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.missing: tuple[int, int] | None = None
        """What was asked for and is not here."""
        self.ready: list[tuple[int, memoryview]] = []
        """What was fetched for the next reads."""
        self._at = 0
        self._blocks: OrderedDict[int, memoryview] = OrderedDict()

    def begin(self) -> None:
        self.missing = None

    def keep(self, place: tuple[int, int], data: Buffer) -> None:
        """Has the bytes of a block that was missing."""
        self._blocks[place[0]] = memoryview(data)
        if len(self._blocks) > _BLOCKS:
            self._blocks.popitem(last=False)

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")
        start, stop = self._at, min(self._at + target.nbytes, self.size)
        if stop <= start:
            return 0
        for at in range(start - start % _BLOCK, stop, _BLOCK):
            a, b = max(start, at), min(stop, at + _BLOCK)
            target[a - start : b - start] = self._piece(a, b, at)
        self._at = stop
        return stop - start

    def _piece(self, start: int, stop: int, block: int) -> memoryview:
        for at, part in self.ready:
            if at <= start and stop <= at + part.nbytes:
                return part[start - at : stop - at]
        if block not in self._blocks:
            self.missing = block, min(block + _BLOCK, self.size)
            raise OSError("these bytes are not here yet")
        self._blocks.move_to_end(block)
        return self._blocks[block][start - block : stop - block]
