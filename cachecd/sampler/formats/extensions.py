"""Decodes a file of a WebDataset sample by its extension: bytes, a number or arrays. Never unpickles."""

from __future__ import annotations

import io
import math
import re
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from cachecd.sampler.formats.packed import LARGEST, inflated
from cachecd_client.files.inflate import Compression

_INTEGER = re.compile(rb"\s*([+-]?[0-9]{1,19})\s*")
_STEP = 1 << 20  # bytes inflated at a time
_MOST_ARRAYS = 1000
_ENCRYPTED = 1  # a flag of a ZIP file's entry
_PACKED: dict[str, Compression] = {"gz": "GZIP", "zst": "ZSTD"}


def features(name: str, data: bytes) -> Iterator[tuple[str, Any]]:
    """Yields (name, value) of each feature in the file: `name` itself, or `NAME/ARRAY` for each array of an
    .npz. ValueError if the file is damaged, too large, or a pickle.

    `name`: the extension in lower case, such as `seg.npy`. The last part decides how the file is decoded;
    if it is gz or zst, the file is inflated and the part before it decides.
    """
    kind = name.rpartition(".")[2]
    if kind in _PACKED:
        data = inflated(data, _PACKED[kind], LARGEST)
        kind = name.removesuffix(kind).rstrip(".").rpartition(".")[2]
    if kind == "npz":
        for array, values in _arrays(data):
            yield f"{name}/{array}", values
    else:
        yield name, _DECODERS.get(kind, bytes)(data)


def _integer(data: bytes) -> int:
    match = _INTEGER.fullmatch(data)
    if match is None or not -(2**63) <= (number := int(match[1])) < 2**63:
        raise ValueError(f"found {data[:40]!r}, expected an integer of 64 bits")
    return number


def _array(data: bytes) -> NDArray[Any]:
    stream = io.BytesIO(data)
    try:
        version = npy.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"version {version}, expected 1.0 or 2.0")
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, by_columns, dtype = read(stream)
    except Exception as error:  # NumPy parses a Python expression, which can fail in many ways
        raise ValueError(f"not a .npy file: {str(error)[:200]}") from None
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which only unpickling could read")
    body = memoryview(data)[stream.tell() :]
    expected = math.prod(shape) * dtype.itemsize
    if not dtype.itemsize or min(shape, default=0) < 0 or len(body) != expected:
        raise ValueError(
            f"{len(body)} bytes of data, expected {expected} for {dtype.name} {str(shape)[:80]}"
        )
    flat = np.frombuffer(bytearray(body), dtype) if body else np.empty(0, dtype)
    native = flat.astype(dtype.newbyteorder("="), copy=False)
    try:
        return native.reshape(shape, order="F" if by_columns else "C")
    except ValueError as error:
        raise ValueError(f"its shape is {str(shape)[:80]}: {error}") from None


def _arrays(data: bytes) -> Iterator[tuple[str, NDArray[Any]]]:
    left = LARGEST
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if len(archive.infolist()) > _MOST_ARRAYS:
                raise ValueError(f"more than {_MOST_ARRAYS} arrays")
            for entry in archive.infolist():
                name = entry.filename.removesuffix(".npy")
                left -= entry.file_size
                if left < 0:
                    raise ValueError(f"more than {LARGEST} bytes of arrays")
                # zipfile inflates other methods in one step, even beyond the stated size.
                if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise ValueError(f"its array {name[:80]!r} is compressed, but not with Deflate")
                if entry.flag_bits & _ENCRYPTED:
                    raise ValueError(f"its array {name[:80]!r} is encrypted")
                with archive.open(entry) as file:
                    content = b"".join(iter(lambda: file.read(_STEP), b""))
                yield name, _array(content)
    except (MemoryError, ValueError):
        raise
    except Exception as error:  # zipfile raises many types for a damaged file
        raise ValueError(f"not an .npz file: {error or type(error).__name__}") from None


def _refused(data: bytes) -> bytes:
    raise ValueError(
        "it is a pickle, which can run any code when it is read: write it as .npy, .npz or .json"
    )


_DECODERS: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), _integer),
    **dict.fromkeys(("pth", "pt", "pkl", "pickle", "pyd"), _refused),
    "npy": _array,
}
