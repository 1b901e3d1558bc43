"""Training that begins within seconds on a cache that grows: small pictures over a slow link.

    cachecd run situation_6_growing.yaml -- python situation_6_growing.py

A learning rate that follows the clock of the run, and not the number of the epoch: early epochs are short, as their
sets are small.
"""

from __future__ import annotations

import math
import time

import torch
from torch import nn

from cachecd_client import connect

MINUTES = 4


def main() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters())
    began = time.monotonic()
    with connect() as cache:
        for epoch in cache.epochs("train", 1_000_000):
            for batch in epoch.torch(64, features=["image", "label"]):
                done = (time.monotonic() - began) / (60 * MINUTES)
                if done >= 1:
                    return
                for group in optimizer.param_groups:
                    group["lr"] = 1e-3 * 0.5 * (1 + math.cos(math.pi * done))
                pixels = (batch["image"].float() - 73) / 90
                loss = nn.functional.cross_entropy(model(pixels), batch["label"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print(f"{60 * MINUTES * done:.0f} s: {epoch.num_records} records, loss {loss:.3f}")


if __name__ == "__main__":
    main()
