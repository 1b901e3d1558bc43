"""One array of an object: its layout, found without reading the rest, and its rows by byte range."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

from cachecd.config import keypattern
from cachecd.config.array import ArrayFile
from cachecd.errors import UnitError
from cachecd.sampler.sources.content import Content
from cachecd_client.schema import NUMERIC_DTYPES

# A record has to be held in memory several times, and a record of TFRecord's ends at 2 GiB.
LARGEST = 1 << 30
_PLAIN = re.compile(r"[<>=|]?[biuf](1|2|4|8)")
_BFLOAT16 = re.compile(r"[<>=|]?V2")
# As NumPy bounds it: a header is parsed as Python literals, and a sound one has a hundred characters.
_LONGEST = 10_000
_FIRST_READ = 1024  # what it is tried to be read with
_MAGIC = b"\x93NUMPY"

Kind = Literal["npy", "raw"]
Read = Callable[[int, int], Awaitable[Buffer]]


@dataclass(frozen=True, slots=True)
class Layout:
    """What is known of an array without its content.

    `stored` is what its bytes are read as, `dtype` what a record calls that (bfloat16 is carried as
    uint16). `shape` is that of one row.
    """

    rows: int
    shape: tuple[int, ...]
    stored: np.dtype[Any]
    dtype: str

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape) * self.stored.itemsize


def kind_of(key: str, file: ArrayFile) -> Kind | None:
    """How an object stores its array, as its name tells; None if it cannot be told."""
    if key.lower().endswith(".npy"):
        return "npy"
    return None if file.dtype is None else "raw"


def matches(file: ArrayFile, key: str) -> bool:
    """Whether a key is of this array."""
    return file.match is None or keypattern.matches(file.match, key)


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
class Array:
    """Rows that lie in the object `key` one after the other, from byte `at` on."""

    key: str
    layout: Layout
    at: int = 0
    etag: str = ""

    async def rows(self, content: Content, start: int, stop: int) -> NDArray[Any]:
        """Rows [start, stop), as they are stored. UnitError."""
        begin, each = self.at, self.layout.row_bytes
        data = await content.read(begin + start * each, begin + stop * each, self.key, self.etag)
        return shaped(self.layout, data)


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
            "its name does not end with .npy; if it is raw binary, set array.dtype and array.shape; if it "
            "is no part of the data, array.match"
        )
    etag = ""  # of an object beside the unit's own, which is the one that was listed
    if size is None and not (kind == "npy" and begun):
        found = await content.find(key)
        size, etag = found.size, found.etag

    async def read(start: int, stop: int) -> Buffer:
        if begun is not None and stop <= begun.end:
            return await begun.read(start, stop)
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
            f"{shown((layout.rows, *layout.shape))}, {layout.dtype})"
        )
    return Array(key, layout, at, etag)


async def npy_layout(file: ArrayFile, read: Read, size: int) -> tuple[Layout, int]:
    """Of a .npy object, from its header, and where row 0 begins. It has `size` bytes, or more."""
    head = bytes(await read(0, min(_FIRST_READ, size)))
    if head[:6] != _MAGIC or len(head) < 10:
        raise UnitError(f"not a .npy file: it begins with {head[:8]!r}, expected {_MAGIC!r}")
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
    found = _header(head[8 + wide : at].decode("utf-8" if version == 3 else "latin-1", "replace"))
    if found["fortran_order"] and isinstance(found["shape"], tuple) and len(found["shape"]) > 1:
        raise UnitError(
            "it is in Fortran order, so that a row lies all over the file; save it as "
            "numpy.ascontiguousarray(...)"
        )
    layout = layout_of(found["shape"], found["descr"], file)
    return layout, at


def _header(text: str) -> dict[str, Any]:
    try:
        found = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        found = None
    if not isinstance(found, dict) or found.keys() != {"descr", "fortran_order", "shape"}:
        raise UnitError(
            f"its header is {shown(text)}, expected {{'descr': ..., 'fortran_order': ..., 'shape': ...}}"
        )
    return found
