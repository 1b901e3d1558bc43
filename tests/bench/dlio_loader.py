"""The loader that DLIO runs for `tests.bench.dlio`: its files, read by our core."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dlio_benchmark.common.enumerations import DataLoaderType
from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader

from cachecd_client import FileSet
from cachecd_client.schema import Feature, Schema


class CachecdLoader(BaseDataLoader):
    """Batches of this rank's records as TensorFlow tensors; each pass is an epoch in another order."""

    def __init__(self, format_type: Any, dataset_type: Any, epoch: int) -> None:
        super().__init__(format_type, dataset_type, epoch, DataLoaderType.TENSORFLOW)

    def read(self) -> None:
        args = self._args
        # DLIO's pictures have one size, and its own loader decodes them to uint8. As strings, TensorFlow
        # would copy each batch while the loop waits.
        image = Feature("image", "bytes", "uint8", (int(args.record_length),), raw=True)
        schema = Schema((image, Feature("size", "int64", "int64", ())))
        self._loader = FileSet(sorted(args.file_list_train), schema=schema).tf(
            self.batch_size, rank=args.my_rank, world=args.comm_size
        )

    def next(self) -> Iterator[Any]:
        self._loader.set_epoch(self.epoch_number)
        yield from self._loader
        self.epoch_number += 1

    def finalize(self) -> None:
        """Nothing: the next epoch reads the same files."""
