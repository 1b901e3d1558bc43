"""litdata: records in chunks of its own format, made by its writer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.contenders import torch_loading
from tests.bench.contenders.contract import Contender
from tests.bench.data import RecordSet
from tests.bench.delivery import Passes

_WINDOW = 256  # records
_SMALL = 32768  # bytes of a record


class Litdata(Contender):
    """Its StreamingDataset over local chunks, shuffled, in its StreamingDataLoader."""

    name = "litdata:0 workers"
    form = "litdata"
    imports = ("torch", "litdata")
    tails = 1

    def convert(self, records: RecordSet, folder: Path) -> None:
        import torch
        from litdata.streaming import Cache

        cache = Cache(str(folder), chunk_bytes=records.shard_bytes)
        for number in range(records.num_records):
            record = records.record(number)
            record["image"] = torch.from_numpy(record["image"])
            cache[number] = record
        cache.done()
        cache.merge()

    @contextmanager
    def open(self, records: RecordSet) -> Iterator[Passes]:
        from litdata import StreamingDataLoader, StreamingDataset

        # Its default decodes small records many times over: it shuffles in wider windows than it
        # decodes in. Large ones it decodes best one by one.
        decoded = _WINDOW if records.record_bytes < _SMALL else 0
        dataset = StreamingDataset(
            str(records.folder(self.form)),
            shuffle=True,
            drop_last=True,
            batch_decode=decoded,
            item_shuffle_window=_WINDOW,
        )
        loader = StreamingDataLoader(
            dataset,
            batch_size=records.batch_size,
            drop_last=True,
            collate_fn=torch_loading.collate,
        )
        yield lambda: iter(loader)


CONTENDERS: list[Contender] = [Litdata()]
