"""Reads one array in an object: first its header, then its rows by byte range."""

from __future__ import annotations

import io
import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from typing_extensions import Buffer

from cachecd.config import keypattern
from cachecd.config.array import ArrayFile
from cachecd.errors import UnitError
from cachecd.sampler.formats.content import Content
from cachecd_client.schema import NUMERIC_DTYPES

# Bytes of a row or a window. A record is in memory several times, and protobuf allows 2 GiB per message.
LARGEST = 1 << 30
_LONGEST = 10_000  # bytes of a header: NumPy's limit. A valid header has about a hundred
_FIRST_READ = 1024  # bytes: more than nearly every header has

Kind = Literal["npy", "raw"]
Read = Callable[[int, int], Awaitable[Buffer]]


@dataclass(frozen=True, slots=True)
class ArrayLayout:
    """Number, shape and type of an array's rows. `shape`: the shape of one row. `stored`: the dtype of the
    bytes. `dtype`: the name of the dtype in a record (bfloat16 is stored as uint16)."""

    rows: int
    shape: tuple[int, ...]
    stored: np.dtype[Any]
    dtype: str

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape) * self.stored.itemsize


def kind_of(key: str, file: ArrayFile) -> Kind | None:
    """Returns how an object stores its array, judged by the key; None if the key does not show it."""
    if key.lower().endswith(".npy"):
        return "npy"
    return None if file.dtype is None else "raw"


def matches(file: ArrayFile, key: str) -> bool:
    """Whether a key belongs to this array."""
    return file.match is None or keypattern.matches(file.match, key)


def layout_of(shape: tuple[int, ...], dtype: np.dtype[Any], file: ArrayFile) -> ArrayLayout:
    """Returns the layout of an array whose header has this shape and dtype. UnitError if a record cannot
    hold a row, or if the configuration expects another dtype."""
    shown = _shortened(shape)
    if any(type(side) is not int or side < 0 for side in shape):
        raise UnitError(f"the array's shape is {shown}, expected whole numbers")
    if not shape:
        raise UnitError("the array has no axis to take windows along: its shape is ()")
    name = dtype.name
    if dtype == np.dtype("V2"):
        if file.dtype != "bfloat16":
            raise UnitError(
                f"the array's elements are two bytes of unknown type ({dtype.str}): if they are bfloat16, "
                "set array.dtype to bfloat16"
            )
        dtype, name = np.dtype("<u2"), "bfloat16"
    elif dtype.hasobject:
        raise UnitError(
            f"the array's dtype is {_shortened(dtype)}: it holds Python objects, which only unpickling "
            "could read"
        )
    elif name not in NUMERIC_DTYPES:
        expected = ", ".join(sorted(NUMERIC_DTYPES))
        raise UnitError(f"the array's dtype is {_shortened(dtype)}: expected one of {expected}")
    wanted = file.dtype if file.dtype in (None, "bfloat16") else np.dtype(file.dtype).name
    if wanted not in (None, name):
        raise UnitError(f"the array's dtype is {name}, but the configuration says {wanted}")
    layout = ArrayLayout(shape[0], shape[1:], dtype, name)
    if not layout.row_bytes:
        raise UnitError(f"the array of shape {shown} is empty")
    if len(shape) > 64 or layout.row_bytes > LARGEST:
        raise UnitError(
            f"one row of the array of shape {shown} has {layout.row_bytes} bytes, expected at most "
            f"{LARGEST}"
        )
    return layout


def raw_layout(file: ArrayFile, size: int) -> ArrayLayout:
    """Returns the layout of an object of `size` bytes that has rows and no header. UnitError."""
    dtype = np.dtype("V2") if file.dtype == "bfloat16" else np.dtype(file.dtype)
    row = layout_of((1, *file.shape), dtype, file)
    rows, rest = divmod(size, row.row_bytes)
    if rest:
        raise UnitError(
            f"the object has {size} bytes, expected a multiple of {row.row_bytes}, the bytes of a row: "
            f"dtype {file.dtype}, shape {list(file.shape)}"
        )
    return replace(row, rows=rows)


def _shortened(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


@dataclass(frozen=True, slots=True)
class Array:
    """The rows of an array in the object `key`; row 0 begins at byte `at`. `etag`: the object's version."""

    key: str
    layout: ArrayLayout
    at: int = 0
    etag: str = ""

    async def rows(self, content: Content, start: int, stop: int) -> NDArray[Any]:
        """Returns rows [start, stop) in the stored byte order. UnitError."""
        begin, stop = (self.at + row * self.layout.row_bytes for row in (start, stop))
        data = await content.read(begin, stop, self.key, self.etag)
        return shaped(self.layout, data)


def shaped(layout: ArrayLayout, data: Buffer) -> NDArray[Any]:
    """Returns an array over the bytes of whole rows, without a copy."""
    flat: NDArray[Any] = np.frombuffer(memoryview(data), layout.stored)
    return flat.reshape(-1, *layout.shape)


def window_of(layout: ArrayLayout, rows: NDArray[Any], start: int, stop: int) -> NDArray[Any]:
    """Returns a copy of rows [start, stop) of `rows`, in the machine's byte order."""
    part = rows[start:stop]
    if layout.stored.kind == "b":
        true: NDArray[Any] = part.view(np.uint8) != 0  # any nonzero byte is True
        return true
    return part.astype(part.dtype.newbyteorder("="), copy=True)


class ArrivingBytes:
    """Bytes [begin, end) of an object, which arrive in order. Offsets are offsets in the object."""

    def __init__(self, chunks: AsyncIterator[Buffer], begin: int, end: int) -> None:
        self.begin = begin
        self.end = end
        self._chunks = chunks
        self._received = begin  # all bytes before this offset have arrived
        self._pieces: deque[tuple[int, memoryview]] = deque()

    async def take(self, start: int, stop: int) -> Buffer:
        """Returns bytes [start, stop). Drops all bytes before `start`."""
        while self._pieces and self._pieces[0][0] + self._pieces[0][1].nbytes <= start:
            self._pieces.popleft()
        while self._received < stop:
            if (arrived := await anext(self._chunks, None)) is None:
                raise UnitError(f"its bytes end at {self._received}, expected {stop}")
            chunk = memoryview(arrived).cast("B")
            if self._received + chunk.nbytes > start:
                self._pieces.append((self._received, chunk))
            self._received += chunk.nbytes
        parts = [piece[max(start - at, 0) : stop - at] for at, piece in self._pieces if at < stop]
        return parts[0] if len(parts) == 1 else b"".join(parts)


async def open_array(
    file: ArrayFile,
    key: str,
    content: Content,
    size: int | None = None,
    begun: ArrivingBytes | None = None,
) -> Array:
    """Opens the array in the object `key`: reads the header, and no row. UnitError if it cannot be used.
    `size`: the object's size, if known. `begun`: the bytes of the object that arrive, from its start on. If
    `key` is not the unit's own object, the present version is read."""
    kind = kind_of(key, file)
    if kind is None:
        raise UnitError(
            "its name does not end with .npy: if it is raw binary, set array.dtype and array.shape; if it "
            "does not belong to the data, exclude it with array.match"
        )
    etag = ""  # only for another object: the unit's own object has the listed ETag
    if size is None and not (kind == "npy" and begun):
        info = await content.find(key)
        size, etag = info.size, info.etag

    async def read(start: int, stop: int) -> Buffer:
        if begun is not None and stop <= begun.end:
            return await begun.take(start, stop)
        return await content.read(start, stop, key, etag)

    if kind == "raw":
        assert size is not None
        return Array(key, raw_layout(file, size), etag=etag)
    known = begun.end if size is None and begun else size
    assert known is not None
    layout, at = await npy_layout(file, read, known)
    end = at + layout.rows * layout.row_bytes
    if size is None and end > known:
        size = (await content.find(key)).size
    if size is not None and end > size:
        raise UnitError(
            f"truncated: the object has {size} bytes, but its header says {end} (shape "
            f"{_shortened((layout.rows, *layout.shape))}, {layout.dtype})"
        )
    return Array(key, layout, at, etag)


async def npy_layout(file: ArrayFile, read: Read, size: int) -> tuple[ArrayLayout, int]:
    """Returns the layout of a .npy object, and the offset of row 0. The object has at least `size` bytes.
    UnitError."""
    head = bytes(await read(0, min(_FIRST_READ, size)))
    if head[:6] != npy.MAGIC_PREFIX or len(head) < 10:
        raise UnitError(
            f"not a .npy file: it begins with {head[:8]!r}, expected {npy.MAGIC_PREFIX!r}"
        )
    version = head[6]
    if version not in (1, 2, 3):
        raise UnitError(f"a .npy file of version {version}, expected 1, 2 or 3")
    wide = 2 if version == 1 else 4
    length = int.from_bytes(head[8 : 8 + wide], "little")
    at = 8 + wide + length
    if length > _LONGEST:
        raise UnitError(f"its header has {length} bytes, expected at most {_LONGEST}")
    if at > size:
        raise UnitError(f"truncated: the object has {size} bytes, but its header ends at {at}")
    if at > len(head):
        head = bytes(await read(0, at))
    # Version 3 only adds field names in UTF-8. A record cannot hold an array with named fields.
    parse = npy.read_array_header_1_0 if version == 1 else npy.read_array_header_2_0
    try:
        shape, by_columns, dtype = parse(io.BytesIO(head[8:at]))
    except Exception as error:  # NumPy parses a Python expression, which can fail in many ways
        raise UnitError(f"its header cannot be read: {str(error)[:200]}") from None
    if by_columns and len(shape) > 1:
        raise UnitError(
            "it is in Fortran order, so the bytes of a row are not contiguous: save it with "
            "numpy.ascontiguousarray(...)"
        )
    return layout_of(shape, dtype, file), at
