"""A training loop with Accelerate: python docs/examples/accelerate_loop.py

The loader is not prepared: it divides records among ranks, and copies to the device, by itself.
"""

from pathlib import Path

import torch
from accelerate import Accelerator
from torch.nn.functional import cross_entropy

from cachecd_client import connect

accelerator = Accelerator()
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(32 * 32, 10))
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=3e-3))

# One process; under `accelerate launch` connect() alone, below `cachecd run digits.yaml -- ...`.
with connect(Path(__file__).with_name("digits.yaml")) as cache:
    for epoch in cache.epochs("train", 3):
        for batch in epoch.torch(batch_size=32, device=accelerator.device):
            loss = cross_entropy(model(batch["image"] / 255), batch["label"])
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        accelerator.print(f"epoch {epoch.epoch}: {epoch.num_records} records, {loss.item():.3f}")
