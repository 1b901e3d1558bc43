"""A cache directory with one generation, for tests of the daemon room."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cachecd.daemon.disk_work import DiskWork
from cachecd.disk.excluded import ExcludedFile
from cachecd.disk.generation_file import GenerationFile, write_generation
from cachecd.disk.layout import GenerationLayout, Layout
from cachecd.model import StreamId
from cachecd.policy import commands as do
from cachecd.policy.values import GenerationId, Lease
from tests.disk.shards import SHAPE

NAME = GenerationId("train", "0123456789abcdef")


def stream(index: int) -> StreamId:
    return StreamId(NAME.dataset, NAME.name, index)


def lease(name: str = "train.0.x.1") -> Lease:
    fields: dict[str, Any] = dict.fromkeys(Lease._fields, 0)
    text = {"id": name, "dataset": "train", "generation": NAME.name, "job": "j"}
    fields |= {**text, "fingerprint": "00ff", "pinned": False, "ranks": 2, "streams": 2}
    return Lease(**{**fields, "intervals": ((0, 0, 3), (1, 0, 2)), "versions": ((4, 1),)})


@dataclass
class Directory:
    """One generation on disk, and the work on it."""

    root: Path
    layout: Layout = field(init=False)
    generation: GenerationLayout = field(init=False)
    work: DiskWork = field(init=False)

    def __post_init__(self) -> None:
        self.layout = Layout(self.root)
        self.generation = self.layout.generation(*NAME)
        self.generation.shards.mkdir(parents=True)
        self.layout.leases.mkdir()
        write_generation(
            self.generation.identity, GenerationFile({}, 0.0, 0, SHAPE.capacity, SHAPE)
        )
        self.start()

    def start(self) -> None:
        self.work = DiskWork(self.layout, ExcludedFile(self.layout.excluded))

    def exclude(self, name: str, *keys: str, samples: tuple[str, ...] = ()) -> None:
        self.work.write(do.WriteExclusion(name, NAME.dataset, keys, samples))

    def text(self, path: Path) -> Any:
        return json.loads(path.read_text())
