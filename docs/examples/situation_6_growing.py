"""Training that begins within seconds on a cache that grows: small pictures over a slow link.

    cachecd run situation_6_growing.yaml -- python situation_6_growing.py

A learning rate that follows the progress of the run and not the number of the epoch, as early epochs are
short: their sets are small.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from cachecd_client import connect

RECORDS = 40 * 60_000  # to learn from in all, however the sets grow


def main() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters())
    with connect() as cache:
        for epoch in cache.epochs("train", records=RECORDS):
            for batch in epoch.torch(64, features=["image", "label"]):
                for group in optimizer.param_groups:
                    group["lr"] = 1e-3 * 0.5 * (1 + math.cos(math.pi * epoch.progress))
                pixels = (batch["image"].float() - 73) / 90
                loss = nn.functional.cross_entropy(model(pixels), batch["label"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print(f"{epoch.progress:.0%}: a set of {epoch.num_records} records, loss {loss:.3f}")


if __name__ == "__main__":
    main()
