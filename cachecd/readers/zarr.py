"""Reads windows of zarr arrays, version 2 and 3, sharded or not, with the zarr library.

zarr reads in its own thread, which must not wait for the store. It reads from the bytes that were already
fetched. If it needs other bytes, it fails, cachecd fetches them, and zarr starts again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cachecd.errors import SourceUnreachableError
from cachecd.readers.windows import ArrayWindows, Layout
from cachecd.sampler.view import StoreView
from cachecd.stores.backend import OF_ZARR, ZARR_ABOVE, GoneError
from cachecd.stores.extras import extra

with extra("zarr", "reader cachecd.readers.zarr"):
    import zarr
    from zarr.core.buffer import cpu
    from zarr.storage import MemoryStore

_AT_ONCE = 8  # requests
_T = TypeVar("_T")


class Windows(ArrayWindows):
    """Windows of the folders NAME.zarr, each an array or a group of arrays."""

    def names(self, store: StoreView) -> Iterator[str]:
        seen, is_one = set(), False
        for about in store.list():
            is_one = is_one or about.key in OF_ZARR
            name, suffix, _ = about.key.partition(".zarr/")
            if suffix and name not in seen:
                seen.add(name)
                yield f"{name}.zarr"
        if is_one and not seen:
            raise SourceUnreachableError(ZARR_ABOVE)

    def layouts(self, store: StoreView, name: str) -> dict[str, Layout]:
        self._open = {f: _Folder(store, name, path) for f, path in self.paths.items()}
        return {f: folder.do(_layout) for f, folder in self._open.items()}

    def rows(self, start: int, stop: int) -> dict[str, NDArray[Any]]:
        return {f: one.do(lambda a: np.asarray(a[start:stop])) for f, one in self._open.items()}


def _layout(array: Any) -> Layout:
    return tuple(array.shape), np.dtype(array.dtype), (array.shards or array.chunks or (1,))[0]


class _Folder(dict[str, Any]):
    """The fetched objects of an array's folder, by key. ValueError if the folder has no array, or if the
    array needs the codec `pickle`, which runs code from the data."""

    def __init__(self, store: StoreView, name: str, path: str | None) -> None:
        self._store = store
        self._folder = f"{name}/{path.strip('/')}" if path else name
        self._wanted: set[str] = set()
        self._missing: set[str] = set()
        for form, file in ((3, "zarr.json"), (2, ".zarray")):
            if self._fetch(file):
                self._form: Any = form
                break
        else:
            raise ValueError(f"{self._folder} has neither zarr.json nor .zarray: set path")
        about = json.loads(self[file].to_bytes())
        if "pickle" in json.dumps([about.get(k) for k in ("codecs", "compressor", "filters")]):
            raise ValueError(
                f"{self._folder} needs the codec pickle, which is refused because it can run code"
            )

    def do(self, work: Callable[[Any], _T]) -> _T:
        """Returns the result of `work` on the array. If bytes are missing, fetches them and repeats the
        work."""
        while True:
            try:
                store = MemoryStore(self, read_only=True)
                return work(zarr.open_array(store, mode="r", zarr_format=self._form))
            except Exception:
                if not self._wanted:
                    raise
            wanted = list(self._wanted)
            with ThreadPoolExecutor(_AT_ONCE) as threads:
                list(threads.map(self._fetch, wanted))
            self._wanted.difference_update(wanted)

    def _fetch(self, key: str) -> bool:
        try:
            self[key] = cpu.Buffer.from_bytes(self._store.get(f"{self._folder}/{key}"))
        except GoneError:
            self._missing.add(key)  # a missing chunk has the fill value everywhere
        return key in self

    def __missing__(self, key: str) -> Any:
        if key in self._missing:
            raise KeyError(key)
        self._wanted.add(key)
        raise OSError("this object has not been fetched yet")
