"""Reads the shards of an MDS set, MosaicML Streaming's format, as they are.

A set is a folder whose index.json names the shards and their columns. A shard has the number of samples,
the offset of each sample and of the end (all uint32), a description, and the samples. A sample has the
lengths (uint32) of the columns without a fixed length, and then all columns.
"""

from __future__ import annotations

import bz2
import contextlib
import hashlib
import importlib
import io
import math
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, Field, NonNegativeInt, PositiveInt, ValidationError

from cachecd.errors import RecordError
from cachecd.sampler.formats.packed import inflated
from cachecd.sampler.view import StoreView
from cachecd.stores.backend import GoneError
from cachecd.stores.extras import extra

_INDEX = "index.json"
_PLAIN = ("bytes", "str", "json", "jpeg", "png", "pil", "str_decimal")  # kept as bytes
# The dtype of an array by its number in the shard: the bits, and 1 for signed integers, 2 for floats.
_DTYPES = {b + k: f"{kind}{b}" for k, kind in enumerate(("uint", "int")) for b in (8, 16, 32, 64)}
_DTYPES |= {bits + 2: f"float{bits}" for bits in (16, 32, 64)}

# Name, length (None: each sample states it), decoder (None: the column is not read).
_Columns = Sequence[tuple[str, int | None, Callable[[bytes], Any] | None]]


class _File(BaseModel):
    name: str = Field(alias="basename")
    size: NonNegativeInt = Field(alias="bytes")
    hashes: dict[str, str]

    def verify(self, data: bytes) -> None:
        if len(data) != self.size:
            raise ValueError(
                f"{self.name} has {len(data)} bytes, but {_INDEX} says {self.size}: it is damaged, or of "
                "another set"
            )
        for algorithm, digest in self.hashes.items():
            if _digest(algorithm, data) not in (None, digest):
                raise ValueError(f"{self.name} is damaged: {_INDEX} has another {algorithm}")


class _Shard(BaseModel):
    format: Literal["mds"]
    version: Literal[2]
    samples: NonNegativeInt
    column_names: list[str]
    column_encodings: list[str]
    column_sizes: list[PositiveInt | None]
    compression: str | None
    raw_data: _File
    zip_data: _File | None

    def content(self, store: StoreView) -> bytes:
        """Returns the whole shard, inflated. ValueError if it contradicts index.json."""
        stored = self.zip_data or self.raw_data
        data = store.get(stored.name)
        stored.verify(data)
        if self.zip_data is not None:
            data = _inflated(data, (self.compression or "").partition(":")[0], self.raw_data.size)
            self.raw_data.verify(data)
        return data


class _Index(BaseModel):
    shards: list[_Shard]


class Shards:
    """The samples of the set whose index.json is directly below `url`. A unit is a shard, and a record has
    the columns of a sample.

    A shard is read only if it agrees with index.json: sizes, hashes, number of samples, offsets. Otherwise
    the whole shard is skipped. A sample that does not fit its columns is skipped alone. Hashes whose names
    begin with xxh are verified if the package xxhash is installed.

    `columns`: the names of the columns to read; default: all. The listing fails if one of them is a pickle,
    or has another encoding that is not supported.
    """

    def __init__(self, columns: Sequence[str] | None = None) -> None:
        self._wanted = columns
        self._version: object = None
        self._shards: dict[str, _Shard] = {}

    def units(self, store: StoreView) -> Iterator[dict[str, Any]]:
        for name, shard in self._index(store).items():
            self._columns(shard)
            yield {"name": name, "size": shard.raw_data.size}

    def read(self, unit: str, store: StoreView) -> Iterator[dict[str, Any] | RecordError]:
        shard = self._index(store).get(unit)
        if shard is None:
            raise ValueError(f"{_INDEX} does not name it: the set changed since it was listed")
        columns = self._columns(shard)
        data = shard.content(store)
        samples = int.from_bytes(data[:4], "little")
        begin = 4 * (samples + 2)
        if samples != shard.samples or len(data) < begin:
            raise ValueError(
                f"it has {samples} samples in {len(data)} bytes, but {_INDEX} says {shard.samples} samples"
            )
        offsets = [begin, *np.frombuffer(data[4:begin], "<u4").tolist()]
        if offsets != sorted(offsets) or offsets[-1] != len(data):
            raise ValueError("its offsets run backwards, or do not end at its end")
        for start, stop in pairwise(offsets[1:]):
            yield _record(columns, data[start:stop])

    def _index(self, store: StoreView) -> dict[str, _Shard]:
        try:
            about = store.stat(_INDEX)
        except GoneError as error:
            raise ValueError(f"url has no {_INDEX}, expected the folder of an MDS set") from error
        if self._version != (about.etag, about.size):
            try:
                shards = _Index.model_validate_json(store.get(_INDEX)).shards
            except ValidationError as error:
                fault = error.errors()[0]
                where = ".".join(map(str, fault["loc"]))
                raise ValueError(
                    f"{_INDEX} does not describe an MDS set: {where}: {fault['msg']}"
                ) from error
            self._shards = {shard.raw_data.name: shard for shard in shards}
            if len(self._shards) < len(shards):
                raise ValueError(f"{_INDEX} names a shard twice")
            self._version = about.etag, about.size
        return self._shards

    def _columns(self, shard: _Shard) -> _Columns:
        names = shard.column_names
        wanted = names if self._wanted is None else self._wanted
        if missing := [name for name in wanted if name not in names]:
            raise ValueError(f"columns: found {missing}, expected some of {names}")
        columns = list(zip(names, shard.column_encodings, shard.column_sizes, strict=False))
        if {len(names), len(shard.column_encodings), len(shard.column_sizes)} != {len(columns)}:
            raise ValueError(f"{_INDEX} has not one encoding and one size for each of {names}")
        return [(n, size, _decoder(n, e) if n in wanted else None) for n, e, size in columns]


def _digest(algorithm: str, data: bytes) -> str | None:
    """Returns the hash, or None if no library has the algorithm."""
    with contextlib.suppress(ImportError, AttributeError, ValueError):
        if algorithm.startswith("xxh"):
            return str(getattr(importlib.import_module("xxhash"), algorithm)(data).hexdigest())
        return hashlib.new(algorithm, data, usedforsecurity=False).hexdigest()
    return None


def _inflated(data: bytes, compression: str, size: int) -> bytes:
    """Returns the content, or a part of it that is larger than `size`."""
    match compression:
        case "zstd":
            return inflated(data, "ZSTD", size)
        case "gz":
            return inflated(data, "GZIP", size)
        case "bz2":
            return bz2.BZ2File(io.BytesIO(data)).read(size + 1)
        case "br" | "snappy":
            with extra("parquet", f"an MDS set with compression {compression}"):
                import pyarrow
        case _:
            raise ValueError(f"compression {compression}, expected zstd, gz, bz2, br or snappy")
    if compression == "br":
        return bytes(
            pyarrow.CompressedInputStream(pyarrow.BufferReader(data), "brotli").read(size + 1)
        )
    # pyarrow does not say how much of its buffer it filled, but the content's length begins the data.
    length = re.match(rb"[\x80-\xff]{0,4}[\0-\x7f]", data)
    stated = sum((byte & 127) << 7 * n for n, byte in enumerate(length[0] if length else b""))
    if stated != size:
        raise ValueError(f"it inflates to {stated} bytes, but {_INDEX} says {size}")
    return bytes(pyarrow.Codec("snappy").decompress(data, size, asbytes=True))


def _record(columns: _Columns, sample: bytes) -> dict[str, Any] | RecordError:
    stated = sum(length is None for _, length, _ in columns)
    what, record = "the sample", {}
    try:
        lengths = iter(struct.unpack_from(f"<{stated}I", sample))
        sizes = [next(lengths) if length is None else length for _, length, _ in columns]
        at = 4 * stated
        if at + sum(sizes) != len(sample):
            raise ValueError(f"{len(sample)} bytes, but its columns have {at + sum(sizes)}")
        for (name, _, decoder), size in zip(columns, sizes, strict=True):
            what = f"column {name!r}"
            if decoder is not None:
                record[name] = decoder(sample[at : at + size])
            at += size
    except (LookupError, ValueError, struct.error) as error:
        return RecordError(f"{what} is damaged: {error}")
    return record


def _decoder(name: str, encoding: str) -> Callable[[bytes], Any]:
    kind, _, form = encoding.partition(":")
    dtype, _, extents = form.partition(":")
    if kind == "ndarray" and dtype in ("", *_DTYPES.values()):
        return partial(_array, dtype, [int(n) for n in extents.split(",")] if extents else None)
    if kind in ("int", *_DTYPES.values()):
        return partial(_values, "int64" if kind == "int" else kind, [])
    if kind in _PLAIN:
        return bytes
    if kind in ("str_int", "str_float"):
        return int if kind == "str_int" else np.float64  # Python's floats are stored as float32
    why = "can run code when it is read" if kind == "pkl" else "is not supported"
    raise ValueError(
        f"column {name!r} has encoding {encoding}, which {why}: list the other columns in the option "
        "`columns`"
    )


def _array(dtype: str, shape: Sequence[int] | None, data: bytes) -> Any:
    if not dtype:
        dtype, data = _DTYPES[data[0]], data[1:]
    if shape is None:
        dimensions, kind = divmod(data[0], 4)
        shape = np.frombuffer(data, f"<u{1 << kind}", dimensions, 1).tolist()
        data = data[1 + (dimensions << kind) :]
    return _values(dtype, shape, data)


def _values(dtype: str, shape: Sequence[int], data: bytes) -> Any:
    expected = math.prod(shape) * np.dtype(dtype).itemsize
    if len(data) != expected:
        raise ValueError(f"{len(data)} bytes, expected {expected} for {dtype} {shape}")
    return np.frombuffer(bytearray(data), dtype).reshape(shape)[()]
