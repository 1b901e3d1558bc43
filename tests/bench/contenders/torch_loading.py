"""Batches by torch's DataLoader: the part that all packages for PyTorch have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tests.bench.data import Record, RecordSet

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

Samples = list[Record]


def collate(samples: Samples) -> dict[str, Any]:
    """Records of arrays as a batch: dense ones by torch's own collate, ragged ones as a pair."""
    from torch.utils.data import default_collate

    dense = [{"image": sample["image"], "label": sample["label"]} for sample in samples]
    batch: dict[str, Any] = default_collate(dense)
    if "scores" in samples[0]:
        lists = [np.asarray(sample["scores"]) for sample in samples]
        batch["scores"] = np.concatenate(lists), np.cumsum([0, *map(len, lists)])
        batch["name"] = [sample["name"] for sample in samples]
    return batch


def loader(
    dataset: Any, records: RecordSet, workers: int, **options: Any
) -> DataLoader[dict[str, Any]]:
    """A DataLoader as its users set it up, its workers kept from pass to pass."""
    from torch.utils.data import DataLoader

    return DataLoader(
        dataset,
        batch_size=records.batch_size,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        **{"collate_fn": collate, **options},
    )


def buffered(records: RecordSet) -> int:
    """Records in the shuffle buffer of a package that fills it in Python, a worker."""
    return max(1, min(1000, int((256 << 20) / records.record_bytes), records.num_records // 4))
