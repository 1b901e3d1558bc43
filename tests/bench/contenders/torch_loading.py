"""Batches by torch's DataLoader: the part that all packages for PyTorch have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.bench.data import Record, RecordSet

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


def collate(samples: list[Record]) -> dict[str, Any]:
    """The image and the label of each record, and nothing that a package adds to them, as a batch."""
    from torch.utils.data import default_collate

    kept = [{"image": sample["image"], "label": sample["label"]} for sample in samples]
    batch: dict[str, Any] = default_collate(kept)
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
