"""litData's chunks, and a record of the chunks that litData downloads."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.growth.fashion import TRAIN
from tests.bench.growth.pace import Numbers

SIZE = 500  # pictures in a chunk
_PIXELS = 784


@dataclass
class Downloads:
    """Chunks in the order of their downloads."""

    names: list[str] = field(default_factory=list)
    _latest: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, name: str) -> None:
        with self._lock:
            self.names.append(name)
            self._latest[name] = len(self.names)

    def number_of(self, chunk: int) -> int:
        """The place of the chunk's latest download in the order of downloads, from 1."""
        with self._lock:
            return self._latest[f"chunk-0-{chunk}.bin"]


def make(folder: Path) -> int:
    """Writes the chunks, with a picture's bytes and its number in each sample. Returns their bytes."""
    import torch
    from litdata.streaming import Cache

    cache = Cache(str(folder), chunk_size=SIZE)
    pixels = torch.zeros(
        _PIXELS, dtype=torch.uint8
    )  # the learner looks the picture up by its number
    for number in range(TRAIN):
        cache[number] = {"image": pixels, "number": number}
    cache.done()
    cache.merge()
    index = json.loads((folder / "index.json").read_text())
    return sum(chunk["chunk_bytes"] for chunk in index["chunks"])


def numbers_of(samples: list[dict[str, Any]]) -> Numbers:
    return np.array([sample["number"] for sample in samples], np.int32)


def recorded() -> Downloads:
    """Replaces litData's downloader with a subclass that records each chunk."""
    from litdata.streaming import downloader

    downloads = Downloads()

    class Recorded(downloader.LocalDownloaderWithCache):  # type: ignore[misc, unused-ignore]
        def download_file(self, remote_filepath: str, local_filepath: str) -> None:
            name = Path(remote_filepath).name
            if name.endswith(".bin") and not Path(local_filepath).exists():
                downloads.add(name)
            super().download_file(remote_filepath, local_filepath)

    downloader.register_downloader("local:", Recorded, overwrite=True)
    return downloads
