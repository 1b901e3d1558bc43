"""One array of an object: its layout, found without reading the rest, and its rows by byte range."""

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

# A record has to be held in memory several times, and a record of TFRecord's ends at 2 GiB.
LARGEST = 1 << 30
# As NumPy bounds it: a header is parsed as Python literals, and a sound one has a hundred characters.
_LONGEST = 10_000
_FIRST_READ = 1024  # bytes, which hold nearly every header

Kind = Literal["npy", "raw"]
Read = Callable[[int, int], Awaitable[Buffer]]


@dataclass(frozen=True, slots=True)
class ArrayLayout:
    """The facts about an array that are known without its content.

    `stored`: the dtype of the stored bytes. `dtype`: its name in a record (bfloat16 is stored as uint16).
    `shape`: the shape of one row.
    """

    rows: int
    shape: tuple[int, ...]
    stored: np.dtype[Any]
    dtype: str

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape) * self.stored.itemsize


def kind_of(key: str, file: ArrayFile) -> Kind | None:
    """Returns how an object stores its array, by the object's name; None if the name does not show it."""
    if key.lower().endswith(".npy"):
        return "npy"
    return None if file.dtype is None else "raw"


def matches(file: ArrayFile, key: str) -> bool:
    """Whether a key belongs to this array."""
    return file.match is None or keypattern.matches(file.match, key)


def layout_of(shape: tuple[int, ...], dtype: np.dtype[Any], file: ArrayFile) -> ArrayLayout:
    """Returns the layout of an array whose header has this shape and dtype. UnitError if a record cannot
    hold a row, or if the configuration expects another dtype."""
    if any(type(side) is not int or side < 0 for side in shape):
        raise UnitError(f"the array's shape is {_shown(shape)}, expected whole numbers")
    if not shape:
        raise UnitError("the array has no axis to take windows along: its shape is ()")
    name = dtype.name
    if dtype == np.dtype("V2"):
        if file.dtype != "bfloat16":
            raise UnitError(
                f"the array's dtype is {dtype.str}, two bytes without a type: if they are bfloat16, set "
                "dtype: bfloat16"
            )
        dtype, name = np.dtype("<u2"), "bfloat16"
    elif dtype.hasobject:
        raise UnitError(
            f"the array's dtype is {_shown(dtype)}: it holds Python objects, which only unpickling "
            "could read"
        )
    elif name not in NUMERIC_DTYPES:
        expected = ", ".join(sorted(NUMERIC_DTYPES))
        raise UnitError(f"the array's dtype is {_shown(dtype)}: expected one of {expected}")
    wanted = file.dtype if file.dtype in (None, "bfloat16") else np.dtype(file.dtype).name
    if wanted not in (None, name):
        raise UnitError(f"the array's dtype is {name}, the configuration says {wanted}")
    layout = ArrayLayout(shape[0], shape[1:], dtype, name)
    if not layout.row_bytes:
        raise UnitError(f"the array of shape {_shown(shape)} is empty")
    if len(shape) > 64 or layout.row_bytes > LARGEST:
        raise UnitError(
            f"one row of the array of shape {_shown(shape)} has {layout.row_bytes} bytes, expected at "
            f"most {LARGEST}"
        )
    return layout


def raw_layout(file: ArrayFile, size: int) -> ArrayLayout:
    """Returns the layout of an object that has only rows."""
    dtype = np.dtype("V2") if file.dtype == "bfloat16" else np.dtype(file.dtype)
    row = layout_of((1, *file.shape), dtype, file)
    rows, over = divmod(size, row.row_bytes)
    if over:
        raise UnitError(
            f"the object has {size} bytes, expected a multiple of a row's {row.row_bytes}: dtype "
            f"{file.dtype}, shape {list(file.shape)}"
        )
    return replace(row, rows=rows)


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


@dataclass(frozen=True, slots=True)
class Array:
    """Consecutive rows in the object `key`, from byte `at` on."""

    key: str
    layout: ArrayLayout
    at: int = 0
    etag: str = ""

    async def rows(self, content: Content, start: int, stop: int) -> NDArray[Any]:
        """Returns rows [start, stop) as they are stored. UnitError."""
        begin, each = self.at, self.layout.row_bytes
        data = await content.read(begin + start * each, begin + stop * each, self.key, self.etag)
        return shaped(self.layout, data)


def shaped(layout: ArrayLayout, data: Buffer) -> NDArray[Any]:
    """Returns bytes of whole rows as an array."""
    flat: NDArray[Any] = np.frombuffer(memoryview(data), layout.stored)
    return flat.reshape(-1, *layout.shape)


def window_of(layout: ArrayLayout, rows: NDArray[Any], start: int, stop: int) -> NDArray[Any]:
    """Returns rows [start, stop) of `rows` for a record: a copy, in the machine's byte order."""
    part = rows[start:stop]
    if layout.stored.kind == "b":
        true: NDArray[Any] = part.view(np.uint8) != 0  # whatever byte stands for it
        return true
    return part.astype(part.dtype.newbyteorder("="), copy=True)


class ArrivingBytes:
    """Bytes [begin, end) of an object, which arrive in order, addressed by their place in the object."""

    def __init__(self, chunks: AsyncIterator[Buffer], begin: int, end: int) -> None:
        self.begin = begin
        self.end = end
        self._chunks = chunks
        self._at = begin  # what has come ends here
        self._held: deque[tuple[int, memoryview]] = deque()

    async def take(self, start: int, stop: int) -> Buffer:
        """Returns bytes [start, stop). Earlier bytes are dropped."""
        while self._held and self._held[0][0] + self._held[0][1].nbytes <= start:
            self._held.popleft()
        while self._at < stop:
            try:
                chunk = memoryview(await anext(self._chunks)).cast("B")
            except StopAsyncIteration:
                raise UnitError(f"its bytes end at {self._at}, expected {stop}") from None
            if self._at + chunk.nbytes > start:
                self._held.append((self._at, chunk))
            self._at += chunk.nbytes
        parts = [piece[max(start - at, 0) : stop - at] for at, piece in self._held if at < stop]
        return parts[0] if len(parts) == 1 else b"".join(parts)


async def open_array(
    file: ArrayFile,
    key: str,
    content: Content,
    size: int | None = None,
    begun: ArrivingBytes | None = None,
) -> Array:
    """Opens the array in the object `key`; reads only its description. UnitError gives the reason if it
    cannot. `size`: the size of the object, if it is known. `begun`: bytes from the beginning of the object.
    Another object than the unit's own is read in the version that it has now."""
    kind = kind_of(key, file)
    if kind is None:
        raise UnitError(
            "its name does not end with .npy; if it is raw binary, set array.dtype and array.shape; if it "
            "is no part of the data, array.match"
        )
    etag = ""  # of an object beside the unit's own, which is the one that was listed
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
            f"truncated: the object has {size} bytes, its header promises {end} (shape "
            f"{_shown((layout.rows, *layout.shape))}, {layout.dtype})"
        )
    return Array(key, layout, at, etag)


async def npy_layout(file: ArrayFile, read: Read, size: int) -> tuple[ArrayLayout, int]:
    """Returns the layout of a .npy object from its header, and the byte of row 0. The object has `size`
    bytes or more."""
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
        raise UnitError(f"truncated: the object has {size} bytes, its header ends at {at}")
    if at > len(head):
        head = bytes(await read(0, at))
    # Version 3 differs from 2 by names of fields in UTF-8, which no record can hold.
    parse = npy.read_array_header_1_0 if version == 1 else npy.read_array_header_2_0
    try:
        shape, by_columns, dtype = parse(io.BytesIO(head[8:at]))
    except Exception as error:  # NumPy parses a Python expression; much can be wrong with that
        raise UnitError(f"its header cannot be read: {str(error)[:200]}") from None
    if by_columns and len(shape) > 1:
        raise UnitError(
            "it is in Fortran order, so the bytes of a row are not together; save it as "
            "numpy.ascontiguousarray(...)"
        )
    return layout_of(shape, dtype, file), at
