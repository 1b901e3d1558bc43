"""Surveys arrays for `cachecd init`: headers of .npy files, metadata of zarr folders, small HDF5 files."""

from __future__ import annotations

import contextlib
import io
import json
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from cachecd.model import ObjectInfo

_HEADER = 64 << 10  # bytes
_LARGEST_FILE = 16 << 20  # bytes of an HDF5 file, which is read whole
_MOST_METADATA = 32  # files of a zarr folder

# Reads an object's first bytes.
Head = Callable[[ObjectInfo, int], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class SurveyedArray:
    """The layout of one array. `row_bytes`: the bytes of one step along axis 0."""

    rows: int
    row_bytes: int
    axes: int

    @classmethod
    def of(cls, shape: Sequence[int], itemsize: int) -> SurveyedArray:
        return cls(shape[0], itemsize * math.prod(shape[1:]), len(shape))


@dataclass(frozen=True, slots=True)
class ArraySurvey:
    """`largest`: the array that is cut into windows. `fewest`: nine of ten arrays have at least this
    number of rows. `count`: the number of arrays. `step`: the rows of a window must be a multiple of
    `step`. `paths`: feature -> path in a file."""

    largest: SurveyedArray
    fewest: int
    count: int
    step: int = 1
    paths: dict[str, str] = field(default_factory=dict)


async def survey_npy(head: Head, groups: Sequence[Sequence[ObjectInfo]]) -> ArraySurvey | None:
    """Reads the headers of the largest group of arrays that belong together.

    Returns None if an object of the group is not an array of numbers, or if no window has whole rows of
    every array."""
    largest = max(groups, key=lambda group: group[0].size)
    arrays = [array for o in largest if (array := _parse_npy(await head(o, _HEADER)))]
    first, *others = arrays or [SurveyedArray(0, 0, 0)]
    if len(arrays) < len(largest) or not all(array.rows for array in arrays):
        return None
    if any(max(first.rows, o.rows) % min(first.rows, o.rows) for o in others):
        return None
    sizes = sorted(group[0].size for group in groups)
    header = largest[0].size - first.rows * first.row_bytes
    fewest = (sizes[len(sizes) // 10] - header) // max(first.row_bytes, 1)
    step = math.lcm(*(first.rows // o.rows or 1 for o in others))
    return ArraySurvey(first, max(0, fewest), len(groups), step)


async def survey_zarr(head: Head, objects: Sequence[ObjectInfo]) -> ArraySurvey | None:
    """Reads the metadata of the arrays in the first folder NAME.zarr. Returns None if it has no array."""
    folder = objects[0].key.partition(".zarr/")[0] + ".zarr/"
    names = (".zarray", "zarr.json")
    files = [o for o in objects if o.key.startswith(folder) and o.key.endswith(names)]
    arrays = {}
    for file in files[:_MOST_METADATA]:
        with contextlib.suppress(ValueError, KeyError, TypeError, IndexError):
            metadata = json.loads(await head(file, _HEADER))
            dtype = np.dtype(metadata["data_type" if "data_type" in metadata else "dtype"])
            path = file.key[len(folder) :].rpartition("/")[0]
            arrays[path] = SurveyedArray.of(metadata["shape"], dtype.itemsize)
    return _largest(arrays, len({o.key.partition(".zarr/")[0] for o in objects}))


async def survey_hdf5(head: Head, objects: Sequence[ObjectInfo]) -> ArraySurvey | None:
    """Searches the smallest file for arrays of numbers. Returns None if h5py is not installed, if the file
    is large, or if it has no array."""
    try:
        import h5py
    except ImportError:
        return None

    smallest = min(objects, key=lambda o: o.size)
    if smallest.size > _LARGEST_FILE:
        return None
    arrays: dict[str, SurveyedArray] = {}

    def visit(path: str, node: object) -> None:  # h5py does not call this for links
        if isinstance(node, h5py.Dataset) and node.shape and node.dtype.kind in "biuf":
            arrays[path] = SurveyedArray.of(node.shape, node.dtype.itemsize)

    # libhdf5 may crash if bytes are missing, so the file is read whole.
    body = io.BytesIO(await head(smallest, smallest.size))
    with contextlib.suppress(OSError, RuntimeError, KeyError), h5py.File(body, "r") as file:
        file.visititems(visit)
    return _largest(arrays, len(objects))


def _largest(arrays: dict[str, SurveyedArray], files: int) -> ArraySurvey | None:
    """Returns the largest array with all arrays that have the same number of rows."""
    if not arrays:
        return None
    largest = max(arrays.values(), key=lambda a: a.rows * a.row_bytes)
    paths = [path for path, array in arrays.items() if array.rows == largest.rows]
    names = dict(_named(paths)) if len(paths) > 1 else {"array": paths[0]}
    return ArraySurvey(largest, largest.rows, files, paths=names)


def _named(paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields (feature, path). The feature is the last part of the path, or the whole path if two paths end
    with the same part."""
    last = [path.rpartition("/")[2] for path in paths]
    for path, name in zip(paths, last, strict=True):
        name = name if last.count(name) == 1 else path.replace("/", "_")
        yield (f"{name}s" if name in ("key", "start") else name), path


def _parse_npy(head: bytes) -> SurveyedArray | None:
    file, npy = io.BytesIO(head), np.lib.format
    try:
        is_first = npy.read_magic(file) == (1, 0)
        read = npy.read_array_header_1_0 if is_first else npy.read_array_header_2_0
        shape, _, dtype = read(file)
    except ValueError:
        return None
    return SurveyedArray.of(shape, dtype.itemsize) if shape and not dtype.hasobject else None
