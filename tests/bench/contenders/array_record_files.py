"""array_record: records in files of its own format, which are made for random access."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.contenders import torch_loading
from tests.bench.contenders.contract import Contender
from tests.bench.data import Record, RecordSet
from tests.bench.delivery import Passes

_HEAD = struct.Struct("<qIxxxx")  # label, bytes of the name


class Records:
    """A map-style dataset that reads a whole batch at once, which the DataLoader asks it for."""

    def __init__(self, records: RecordSet, files: list[str]) -> None:
        from array_record.python.array_record_data_source import ArrayRecordDataSource

        self._shape = records.case.shape
        self._image_bytes = records.case.image_bytes
        self._source = ArrayRecordDataSource(files)

    def __len__(self) -> int:
        return len(self._source)

    def __getitems__(self, rows: list[int]) -> list[Record]:
        return [self._unpacked(packed) for packed in self._source.__getitems__(rows)]

    def _unpacked(self, packed: bytes) -> Record:
        label, name_bytes = _HEAD.unpack_from(packed)
        image = np.frombuffer(packed, np.uint8, self._image_bytes, _HEAD.size)
        record: Record = {"image": image.reshape(self._shape), "label": label}
        if name_bytes:
            rest = _HEAD.size + self._image_bytes
            record["scores"] = np.frombuffer(packed[rest:-name_bytes], np.float32)
            record["name"] = packed[-name_bytes:]
        return record


class ArrayRecord(Contender):
    """Its data source under a random sampler, in a DataLoader; records are packed by hand."""

    form = "array_record"
    imports = ("torch", "array_record.python.array_record_data_source")
    shuffled = "over the whole set"
    checked = "its own checksums"

    def __init__(self, workers: int) -> None:
        self.name = f"array_record:{workers} workers"
        self._workers = workers

    def convert(self, records: RecordSet, folder: Path) -> None:
        from array_record.python.array_record_module import ArrayRecordWriter

        for shard, numbers in enumerate(records.shards):
            writer = ArrayRecordWriter(
                str(folder / f"{shard:05d}.array_record"), "group_size:1,uncompressed"
            )
            for number in numbers:
                writer.write(_packed(records.record(number)))
            writer.close()

    @contextmanager
    def open(self, records: RecordSet) -> Iterator[Passes]:
        files = [str(p) for p in sorted(records.folder(self.form).glob("*.array_record"))]
        loader = torch_loading.loader(Records(records, files), records, self._workers, shuffle=True)
        yield lambda: iter(loader)


def _packed(record: dict[str, Any]) -> bytes:
    name = record.get("name", b"")
    scores = np.array(record.get("scores", []), np.float32)
    head = _HEAD.pack(record["label"], len(name))
    return b"".join([head, record["image"].tobytes(), scores.tobytes(), name])


CONTENDERS: list[Contender] = [ArrayRecord(0), ArrayRecord(2)]
