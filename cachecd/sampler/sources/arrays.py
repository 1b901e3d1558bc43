"""One array of an object: its layout, found without reading the rest, and its rows by byte range."""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

from cachecd.config.array import ArrayFile
from cachecd.errors import UnitError
from cachecd.sampler.sources.content import Content
from cachecd_client.schema import NUMERIC_DTYPES

# A record has to be held in memory several times, and a record of TFRecord's ends at 2 GiB.
LARGEST = 1 << 30
_PLAIN = re.compile(r"[<>=|]?[biuf](1|2|4|8)")
_BFLOAT16 = re.compile(r"[<>=|]?V2")
_HDF5 = (".h5", ".hdf5", ".nwb")

Kind = Literal["npy", "raw", "zarr", "hdf5"]
Read = Callable[[int, int], Awaitable[Buffer]]


@dataclass(frozen=True, slots=True)
class Layout:
    """What is known of an array without its content.

    `stored` is what its bytes are read as, `dtype` what a record calls that (bfloat16 is carried as
    uint16). `shape` is that of one row. Rows are stored `chunk_rows` at a time, in `chunks` objects or
    parts of one, side by side.
    """

    rows: int
    shape: tuple[int, ...]
    stored: np.dtype[Any]
    dtype: str
    chunk_rows: int = 1
    chunks: int = 1

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape) * self.stored.itemsize


class Array(Protocol):
    """An array of which any rows can be read."""

    @property
    def layout(self) -> Layout: ...

    @property
    def at(self) -> int | None:
        """The byte of the object with which row 0 begins, if all rows lie there one after the other."""

    async def rows(self, content: Content, start: int, stop: int) -> NDArray[Any]:
        """Rows [start, stop), in the machine's byte order or as stored. UnitError."""

    def close(self) -> None:
        """Lets go of what reading it holds open; nothing is read any more. Idempotent."""


def kind_of(key: str, file: ArrayFile) -> Kind | None:
    """How an object stores its array, as its name tells; None if it cannot be told."""
    if zarr_root(key) is not None:
        return "zarr"
    lowered = key.lower()
    if lowered.endswith(".npy"):
        return "npy"
    if lowered.endswith(_HDF5):
        return "hdf5"
    return None if file.dtype is None else "raw"


def zarr_root(key: str) -> str | None:
    """The folder NAME.zarr that a key lies in."""
    found = re.match(r"(.*?\.zarr)/", key, re.S | re.I)
    return found and found[1]


def matches(file: ArrayFile, key: str) -> bool:
    """Whether a key is the pattern, each * of it being any text; of a zarr array, its folder."""
    if file.match is None:
        return True
    key = zarr_root(key) or key
    begin, *middle = file.match.split("*")
    if not middle:
        return key == begin
    if not key.startswith(begin):
        return False
    at = len(begin)
    *middle, end = middle
    for part in middle:
        if (found := key.find(part, at)) < 0:
            return False
        at = found + len(part)
    return len(key) - len(end) >= at and key.endswith(end)


def layout_of(shape: Any, descr: Any, file: ArrayFile, where: str = "the array") -> Layout:
    """The layout of what says of itself that it has this shape and dtype; UnitError if it is none that
    a record can hold, or not what the configuration expects."""
    if not (
        isinstance(shape, tuple)
        and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in shape)
    ):
        raise UnitError(f"{where}'s shape is {shown(shape)}, expected whole numbers")
    if not shape:
        raise UnitError(f"{where} has no axis to take windows along: its shape is ()")
    stored, dtype = _dtypes(descr, file, where)
    found = Layout(shape[0], tuple(int(n) for n in shape[1:]), stored, dtype)
    if not found.row_bytes:
        raise UnitError(f"{where} of shape {shown(shape)} is empty")
    if len(shape) > 64 or found.row_bytes > LARGEST:
        raise UnitError(
            f"one row of {where} of shape {shown(shape)} has {found.row_bytes} bytes, expected at "
            f"most {LARGEST}"
        )
    return found


def _dtypes(descr: Any, file: ArrayFile, where: str) -> tuple[np.dtype[Any], str]:
    if isinstance(descr, str) and _BFLOAT16.fullmatch(descr):
        if file.dtype != "bfloat16":
            raise UnitError(
                f"{where}'s dtype is {descr}, two bytes of no type: if they are bfloat16, say dtype: "
                "bfloat16"
            )
        return np.dtype("<u2"), "bfloat16"
    if not isinstance(descr, str) or not _PLAIN.fullmatch(descr):
        why = "it holds Python objects, which only unpickling could read" if _objects(descr) else ""
        expected = f"expected one of {', '.join(sorted(NUMERIC_DTYPES))}"
        raise UnitError(f"{where}'s dtype is {shown(descr)}: {why or expected}")
    try:
        stored = np.dtype(descr)
    except TypeError:
        raise UnitError(f"{where}'s dtype is {shown(descr)}, which NumPy does not know") from None
    if stored.name not in NUMERIC_DTYPES:
        raise UnitError(f"{where}'s dtype is {stored.name}, which no record can hold")
    if file.dtype is not None:
        expected = file.dtype if file.dtype == "bfloat16" else np.dtype(file.dtype).name
        if expected != stored.name:
            raise UnitError(f"{where}'s dtype is {stored.name}, the configuration says {expected}")
    return stored, stored.name


def _objects(descr: Any) -> bool:
    return isinstance(descr, str) and descr.lstrip("<>=|").startswith("O")


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def raw_layout(file: ArrayFile, size: int) -> Layout:
    """Of an object that is nothing but rows."""
    assert file.dtype is not None
    descr = "V2" if file.dtype == "bfloat16" else np.dtype(file.dtype).str
    row = layout_of((1, *file.shape), descr, file)
    rows, over = divmod(size, row.row_bytes)
    if over:
        raise UnitError(
            f"the object has {size} bytes, expected a multiple of a row's {row.row_bytes}: dtype "
            f"{file.dtype}, shape {list(file.shape)}"
        )
    return Layout(rows, row.shape, row.stored, row.dtype)


@dataclass(frozen=True, slots=True)
class Flat:
    """Rows that lie in the object `key` one after the other."""

    key: str
    layout: Layout
    at: int | None = 0
    etag: str = ""

    async def rows(self, content: Content, start: int, stop: int) -> NDArray[Any]:
        assert self.at is not None
        begin, each = self.at, self.layout.row_bytes
        data = await content.read(begin + start * each, begin + stop * each, self.key, self.etag)
        return shaped(self.layout, data)

    def close(self) -> None:
        pass


def shaped(layout: Layout, data: Buffer) -> NDArray[Any]:
    """Bytes of whole rows as an array."""
    flat: NDArray[Any] = np.frombuffer(memoryview(data), layout.stored)
    return flat.reshape(-1, *layout.shape)


def window_of(layout: Layout, rows: NDArray[Any], start: int, stop: int) -> NDArray[Any]:
    """Rows [start, stop) of `rows` as a record holds them: a copy of its own, in the machine's order."""
    part = rows[start:stop]
    if layout.stored.kind == "b":
        true: NDArray[Any] = part.view(np.uint8) != 0  # whatever byte stands for it
        return true
    return part.astype(part.dtype.newbyteorder("="), copy=True)


class Begun(Protocol):
    """The beginning of an object, up to byte `end`, which is being fetched anyway."""

    end: int

    async def read(self, start: int, stop: int) -> Buffer: ...


async def open_array(
    file: ArrayFile,
    key: str,
    content: Content,
    size: int | None = None,
    begun: Begun | None = None,
) -> Array:
    """The array in the object `key`, of which nothing was read but what describes it. UnitError says
    why there is none. `size` is the object's, where it is known. Of an object beside the unit's own, all
    is of the version that was there when this was called."""
    kind = kind_of(key, file)
    if kind is None:
        raise UnitError(
            "its name does not tell what it is (.npy, .zarr/, .h5, .hdf5, .nwb); if it is raw "
            "binary, say array.dtype and array.shape; if it is no part of the data, array.match"
        )
    etag = ""  # of an object beside the unit's own, which is the one that was listed
    if size is None and kind != "zarr" and not (kind == "npy" and begun):
        found = await content.find(key)
        size, etag = found.size, found.etag

    async def read(start: int, stop: int) -> Buffer:
        if begun is not None and stop <= begun.end:
            return await begun.read(start, stop)
        return await content.read(start, stop, key, etag)

    match kind:
        case "npy":
            from cachecd.sampler.sources.npyheader import npy_layout

            known = begun.end if size is None and begun else size
            assert known is not None
            layout, at = await npy_layout(file, read, known)
            end = at + layout.rows * layout.row_bytes
            if size is None and end > known:
                size = (await content.find(key)).size
            if size is not None and end > size:
                raise UnitError(
                    f"truncated: the object has {size} bytes, its header promises {end} (shape "
                    f"{shown((layout.rows, *layout.shape))}, {layout.dtype})"
                )
            return Flat(key, layout, at, etag)
        case "raw":
            assert size is not None
            return Flat(key, raw_layout(file, size), etag=etag)
        case "zarr":
            from cachecd.sampler.sources.zarrays import open_zarr

            return await open_zarr(file, key, content)
        case "hdf5":
            from cachecd.sampler.sources.hdf5 import open_hdf5

            assert size is not None
            return await open_hdf5(file, key, size, etag, content)
