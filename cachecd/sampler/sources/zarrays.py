"""Zarr arrays of version 2 and 3: the zarr library decodes what our store fetches.

What describes an array is checked before the library sees it: it names codecs, of which some would
run what the data says (`pickle`), and sizes, which would be allocated.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cachecd.config.array import ArrayFile
from cachecd.errors import ConfigError, SourceError, UnitError
from cachecd.sampler.sources.arrays import LARGEST, Layout, layout_of, shown, zarr_root
from cachecd.sampler.sources.content import Content, whole_of
from cachecd.sampler.stores.backend import GoneError
from cachecd_client.schema import NUMERIC_DTYPES

try:
    import zarr
    from zarr.abc.store import OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
    from zarr.core.buffer import default_buffer_prototype
    from zarr.storage import StorePath
except ImportError as missing:
    raise ConfigError(
        f"zarr arrays need a package ({missing}): pip install 'cachecd[zarr]'"
    ) from missing

if TYPE_CHECKING:
    from zarr.abc.store import ByteRequest
    from zarr.core.buffer import Buffer, BufferPrototype

_LONGEST = 1 << 20  # bytes of what describes an array, its attributes included
_DESCRIPTION = 64 << 10  # what describes an array has hardly more bytes
_BESIDE = 1 << 10  # of a chunk, beside its elements, where nothing compresses it
_OVERHEAD = 1 << 20  # what a chunk may take beyond its elements, stored
# All of them work on bytes and numbers alone.
_CODECS = frozenset(
    {
        *("bytes", "endian", "transpose", "sharding_indexed", "crc32c"),
        *("blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd"),
        *("adler32", "crc32", "fletcher32", "jenkins_lookup3"),
        *("astype", "bitround", "delta", "fixedscaleoffset", "packbits", "quantize", "shuffle"),
    }
)


async def open_zarr(file: ArrayFile, key: str, content: Content) -> Zarr:
    """The array in the folder NAME.zarr of this key, or at `file.path` in it. UnitError."""
    root = zarr_root(key)
    assert root is not None
    folder = f"{root}/{file.path.strip('/')}" if file.path else root
    name, text = await _description(folder, key, content)
    try:
        about = json.loads(text)
        found = (_third if name == "zarr.json" else _second)(about, file)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        told = f"{type(error).__name__}: {error}"
        raise UnitError(f"{folder}/{name} does not describe an array: {shown(told)}") from None
    layout, most = found
    store = _Folder(folder, {name: text, ".zattrs": b"{}"}, most, content)
    try:
        array = await zarr.AsyncArray.open(
            StorePath(store), zarr_format=3 if name == "zarr.json" else 2
        )
    except SourceError:
        raise
    except Exception as error:  # whatever the library thinks of it
        raise UnitError(f"zarr cannot open {folder}: {_told(error)}") from None
    return Zarr(layout, array, store)


async def _description(folder: str, key: str, content: Content) -> tuple[str, bytes]:
    """Name and content of what describes the array; it is the object `key`, if there is a choice."""
    names = ("zarr.json", ".zarray")
    for name in reversed(names) if key.endswith("/.zarray") else names:
        try:
            return name, await whole_of(content, f"{folder}/{name}", _DESCRIPTION, _LONGEST)
        except GoneError:
            continue
    raise UnitError(
        f"there is neither {folder}/zarr.json nor {folder}/.zarray: if it is a group, say array.path"
    )


def _third(about: Any, file: ArrayFile) -> tuple[Layout, int]:
    """Layout of version 3, and the most that may be read for a chunk."""
    if about["node_type"] != "array":
        raise UnitError("it is a zarr group: name the array in it by array.path")
    dtype, grid = about["data_type"], about["chunk_grid"]
    known = isinstance(dtype, str) and dtype in NUMERIC_DTYPES - {"bfloat16"}
    chunks, inner = grid["configuration"]["chunk_shape"], None
    if grid["name"] != "regular":
        raise UnitError(f"its chunk grid is {shown(grid['name'])}, expected regular")
    for codec in about["codecs"]:
        if isinstance(codec, dict) and codec["name"] == "sharding_indexed":
            inner = codec["configuration"]["chunk_shape"]
    _check_codecs(_names(about["codecs"]))
    return _layout(about["shape"], np.dtype(dtype).str if known else dtype, file, chunks, inner)


def _second(about: Any, file: ArrayFile) -> tuple[Layout, int]:
    """The same of version 2."""
    codecs = [about["compressor"], *(about["filters"] or ())]
    _check_codecs(codec["id"] for codec in codecs if codec is not None)
    return _layout(about["shape"], about["dtype"], file, about["chunks"], None)


def _names(codecs: Any) -> Iterator[Any]:
    for codec in codecs:
        if isinstance(codec, str):
            yield codec
            continue
        yield codec["name"]
        about = codec.get("configuration") or {}
        for inner in ("codecs", "index_codecs"):
            yield from _names(about.get(inner, ()))


def _check_codecs(names: Iterable[Any]) -> None:
    for name in names:
        if str(name).removeprefix("numcodecs.") not in _CODECS:
            raise UnitError(
                f"its codec is {shown(name)}, expected one of {', '.join(sorted(_CODECS))}"
            )


def _layout(shape: Any, descr: Any, file: ArrayFile, chunks: Any, inner: Any) -> tuple[Layout, int]:
    found = layout_of(tuple(shape), descr, file)
    most = 0
    for grid in (chunks, inner or chunks):
        sound = len(grid) == len(shape) and all(type(n) is int and n > 0 for n in grid)
        most = max(most, math.prod(grid) * found.stored.itemsize if sound else LARGEST + 1)
        if most > LARGEST:
            raise UnitError(
                f"its chunks are {shown(grid)} of shape {shown(shape)}, expected so many positive "
                f"numbers, and at most {LARGEST} bytes"
            )
    grid = inner or chunks
    across = math.prod(-(-n // c) for n, c in zip(shape[1:], grid[1:], strict=True))
    layout = Layout(found.rows, found.shape, found.stored, found.dtype, grid[0], across)
    return layout, 2 * most + _OVERHEAD


def _told(error: Exception) -> str:
    return shown(f"{type(error).__name__}: {error}")


class Zarr:
    """Rows of an open zarr array."""

    at: int | None = None

    def __init__(self, layout: Layout, array: Any, store: _Folder) -> None:
        self.layout = layout
        self._array = array
        self._store = store

    async def rows(self, content: Content, start: int, stop: int) -> NDArray[Any]:
        self._store.content = content
        try:
            found = np.asarray(await self._array.getitem((slice(start, stop),)))
        except SourceError:
            raise
        except Exception as error:  # a chunk that its codec refuses
            raise UnitError(f"zarr cannot decode rows {start} to {stop}: {_told(error)}") from None
        expected = (stop - start, *self.layout.shape)
        if (found.dtype.name, found.shape) != (self.layout.dtype, expected):
            raise UnitError(
                f"zarr decoded {found.dtype.name}{list(found.shape)}, expected "
                f"{self.layout.dtype}{list(expected)}"
            )
        return found

    def close(self) -> None:
        pass


class _Folder(Store):
    """A folder of the source, as zarr reads one. `known` are the objects that were read already; of
    others, `most` bytes at a time."""

    supports_writes = False
    supports_deletes = False
    supports_listing = False

    def __init__(self, folder: str, known: dict[str, bytes], most: int, content: Content) -> None:
        super().__init__(read_only=True)
        self.content = content
        self._folder = folder
        self._known = known
        self._most = most
        # What is asked for counts against the bandwidth, whether the object has so much or not. Of the
        # first chunks that is what they take uncompressed, of others a little more than the largest.
        self._likely = (most - _OVERHEAD) // 2 + _BESIDE
        self._largest = 0

    def __eq__(self, other: object) -> bool:
        return self is other

    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        made = (prototype or default_buffer_prototype()).buffer.from_bytes
        if key in self._known:
            return made(self._known[key])
        try:
            return made(await self._read(f"{self._folder}/{key}", byte_range))
        except GoneError:
            return None  # all of it is the fill value

    async def _read(self, key: str, wanted: ByteRequest | None) -> bytes:
        match wanted:
            case None:
                found = await whole_of(self.content, key, self._likely, self._most)
                self._largest = max(self._largest, len(found))
                self._likely = self._largest * 5 // 4
                return found
            case RangeByteRequest(start, stop):
                self._check(key, stop - start)
                return bytes(await self.content.read(start, stop, key)) if stop > start else b""
            case SuffixByteRequest(length):
                self._check(key, length)
                return bytes((await self.content.tail(length, key))[1])
            case OffsetByteRequest(start):
                size = (await self.content.find(key)).size
                self._check(key, size - start)
                return bytes(await self.content.read(start, size, key)) if size > start else b""

    def _check(self, key: str, length: int) -> None:
        if not 0 <= length <= self._most:
            raise UnitError(f"{key}: {length} bytes, expected at most {self._most} of a chunk")

    async def get_partial_values(
        self,
        prototype: BufferPrototype,
        key_ranges: Iterable[tuple[str, ByteRequest | None]],
    ) -> list[Buffer | None]:
        return [await self.get(key, prototype, wanted) for key, wanted in key_ranges]

    async def exists(self, key: str) -> bool:
        return key in self._known

    async def set(self, key: str, value: Buffer) -> None:
        raise NotImplementedError("a source is read only")

    async def delete(self, key: str) -> None:
        raise NotImplementedError("a source is read only")

    def list(self) -> AsyncIterator[str]:
        raise NotImplementedError("an array is named, not looked for")

    def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        raise NotImplementedError("an array is named, not looked for")

    def list_dir(self, prefix: str) -> AsyncIterator[str]:
        raise NotImplementedError("an array is named, not looked for")
