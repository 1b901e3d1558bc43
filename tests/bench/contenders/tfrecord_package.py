"""The `tfrecord` package: a reader of TFRecord files in Python, with protobuf's parser."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np

from tests.bench.contenders import torch_loading
from tests.bench.contenders.contract import Contender
from tests.bench.data import Record, RecordSet
from tests.bench.delivery import Passes


class TfrecordPackage(Contender):
    """Its loader for one file, over this worker's files, with its shuffle queue, in a DataLoader.

    Its own MultiTFRecordDataset draws a file at random for each record, which costs more.
    """

    imports = ("torch", "tfrecord")
    shuffled = "the files, and within 1,000 records or 256 MiB"
    checked = "nothing"

    def __init__(self, workers: int) -> None:
        self.name = f"tfrecord:{workers} workers"
        self.tails = max(1, workers)
        self._workers = workers

    @contextmanager
    def open(self, records: RecordSet) -> Iterator[Passes]:
        from tfrecord import iterator_utils, reader
        from torch.utils.data import IterableDataset, get_worker_info

        description = {"image": "byte", "label": "int"}
        if records.case.mixed:
            description |= {"name": "byte", "scores": "float"}

        def decoded(example: dict[str, Any]) -> Record:
            image = np.frombuffer(example["image"], np.uint8).reshape(records.case.shape)
            return {**example, "image": image, "label": int(example["label"][0])}

        class Files(IterableDataset[Record]):
            def __iter__(self) -> Iterator[Record]:
                worker = get_worker_info()
                files = records.files[worker.id :: worker.num_workers] if worker else records.files
                random.shuffle(files)
                examples = chain.from_iterable(
                    reader.tfrecord_loader(file, None, description) for file in files
                )
                queue = torch_loading.buffered(records)
                return map(decoded, iterator_utils.shuffle_iterator(examples, queue))

        loader = torch_loading.loader(Files(), records, self._workers)
        yield lambda: iter(loader)


CONTENDERS: list[Contender] = [TfrecordPackage(0), TfrecordPackage(2)]
