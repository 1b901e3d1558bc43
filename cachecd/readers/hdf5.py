"""Reads windows of HDF5 datasets with h5py.

h5py must not wait for the store, because it holds a lock that all its threads need. It reads from the bytes
that were already fetched. If it needs other bytes, it fails, cachecd fetches them, and h5py starts again.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cachecd.readers.windows import ArrayWindows, Layout
from cachecd.sampler.view import StoreView
from cachecd.stores.extras import extra

with extra("hdf5", "reader cachecd.readers.hdf5"):
    import h5py

_SUFFIXES = (".h5", ".hdf5", ".nwb")
_BLOCK, _ROWS = 256 << 10, 4 << 20  # bytes that are fetched together: of metadata, of rows
_T = TypeVar("_T")


class Windows(ArrayWindows):
    """Windows of the files NAME.h5, .hdf5 and .nwb. ValueError without `path`, because libhdf5 may crash
    when it searches an incomplete file."""

    def __init__(self, window: int, **options: Any) -> None:
        super().__init__(window, **options)
        if None in self.paths.values():
            raise ValueError(
                "path is missing: set it to the path of a dataset, such as acquisition/data"
            )

    def names(self, store: StoreView) -> Iterator[str]:
        return (about.key for about in store.list() if about.key.lower().endswith(_SUFFIXES))

    def layouts(self, store: StoreView, name: str) -> dict[str, Layout]:
        self._file = _Remote(store, name)
        return self._file.do(self._layouts, _BLOCK)

    def _layouts(self, file: Any) -> dict[str, Layout]:
        return {feature: _layout(_dataset(file, path)) for feature, path in self.paths.items()}

    def rows(self, start: int, stop: int) -> dict[str, NDArray[Any]]:
        return self._file.do(
            lambda file: {f: _dataset(file, p)[start:stop] for f, p in self.paths.items()}, _ROWS
        )


class _Remote(io.RawIOBase):
    """One version of an object as a file. Reading bytes that were not fetched yet raises OSError."""

    def __init__(self, store: StoreView, name: str) -> None:
        self._size = store.stat(name).size
        self._remote = store.open(name)
        self._parts: dict[int, bytes] = {}
        self._at, self._missing = 0, -1

    def do(self, work: Callable[[Any], _T], ahead: int) -> _T:
        """Returns the result of `work` on the file. If bytes are missing, fetches `ahead` bytes at the
        missing place and repeats the work."""
        while True:  # each failure fetches a part
            self._missing = -1
            try:
                with h5py.File(self, "r") as file:
                    return work(file)
            except Exception:
                if self._missing < 0:
                    raise
            self._remote.seek(self._missing)
            self._parts[self._missing] = self._remote.read(min(ahead, self._size - self._missing))

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        into = memoryview(buffer).cast("B")
        done, stop = 0, min(len(into), self._size - self._at)
        while done < stop:
            at = self._at + done
            for begin, part in self._parts.items():
                if begin <= at < begin + len(part):
                    piece = part[at - begin : at - begin + stop - done]
                    break
            else:
                self._missing = at
                raise OSError("these bytes have not been fetched yet")
            into[done : done + len(piece)] = piece
            done += len(piece)
        self._at += done
        return done


def _dataset(file: Any, path: Any) -> Any:
    """Returns the dataset at a path. ValueError for links and datasets in other files, because they may
    name any file of this machine."""
    node = file
    for name in path.strip("/").split("/"):
        if not isinstance(node, h5py.Group) or name not in node:
            raise ValueError(f"it has no {path!r}")
        if not isinstance(node.get(name, getlink=True), h5py.HardLink):
            raise ValueError(f"{name!r} of {path!r} is a link: set path to the target of the link")
        node = node[name]
    if not isinstance(node, h5py.Dataset) or node.shape is None:
        raise ValueError(f"{path!r} is not a dataset with rows")
    if node.is_virtual or node.external:
        raise ValueError(f"{path!r} is stored in other files, which cachecd does not read")
    return node


def _layout(dataset: Any) -> Layout:
    return tuple(dataset.shape), np.dtype(dataset.dtype), (dataset.chunks or (1,))[0]
