"""For code that insists on a DataLoader: python docs/examples/torch_dataloader.py

An epoch's `to_dataset()` gives the batches of `epoch.torch()`, in the same order, made by workers.
"""

from pathlib import Path

from cachecd_client import connect
from torch.utils.data import DataLoader


def main():
    with connect(Path(__file__).with_name("digits.yaml")) as cache:
        for epoch in cache.epochs("train", 2):
            dataset = epoch.to_dataset(batch_size=32)
            loader = DataLoader(dataset, batch_size=None, num_workers=2)  # a new one for each lease
            rows = sum(len(batch["label"]) for batch in loader)
            print(f"epoch {epoch.epoch}: {len(loader)} batches, {rows} rows")


if __name__ == "__main__":  # workers that are spawned import this file
    main()
