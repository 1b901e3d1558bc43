"""mosaicml-streaming: records in shards of its own format, MDS, made by its writer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.contenders import torch_loading
from tests.bench.contenders.contract import Contender
from tests.bench.data import RecordSet
from tests.bench.delivery import Passes


class Mosaic(Contender):
    """Its StreamingDataset over local shards, shuffled by its default algorithm, in a DataLoader."""

    name = "mosaicml-streaming:2 workers"
    form = "mds"
    imports = ("torch", "streaming")
    tails = 2

    def convert(self, records: RecordSet, folder: Path) -> None:
        from streaming import MDSWriter

        shape = ",".join(map(str, records.case.shape))
        columns = {"image": f"ndarray:uint8:{shape}", "label": "int"}
        with MDSWriter(out=str(folder), columns=columns, size_limit=records.shard_bytes) as writer:
            for number in range(records.num_records):
                writer.write(records.record(number))

    @contextmanager
    def open(self, records: RecordSet) -> Iterator[Passes]:
        from streaming import StreamingDataset
        from streaming.base.util import clean_stale_shared_memory

        clean_stale_shared_memory()  # of a measurement that was ended before its time
        dataset = StreamingDataset(
            local=str(records.folder(self.form)), shuffle=True, batch_size=records.batch_size
        )
        loader = torch_loading.loader(dataset, records, 2)
        yield lambda: iter(loader)
        clean_stale_shared_memory()


CONTENDERS: list[Contender] = [Mosaic()]
