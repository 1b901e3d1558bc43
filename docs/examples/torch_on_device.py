"""Random crops and normalisation on the device: python docs/examples/torch_on_device.py

uint8 crosses the bus, a quarter of what float32 would take, and the augmentation is a few kernels
for the whole batch instead of work for every record in Python.
"""

from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from cachecd_client import connect

device = "cuda" if torch.cuda.is_available() else "cpu"
MEAN, STD, CROP = 0.3, 0.35, 28


def augment(images):
    """uint8 [rows, channels, height, width] to float32, another crop for each row."""
    rows, _, height, width = images.shape
    ahead = torch.arange(CROP, device=images.device)
    top = torch.randint(height - CROP + 1, (rows, 1), device=images.device) + ahead
    left = torch.randint(width - CROP + 1, (rows, 1), device=images.device) + ahead
    row = torch.arange(rows, device=images.device)[:, None, None]
    # Indexing [row, :, top, left] gives [rows, crop, crop, channels]: channels last, as it was.
    cut = images[row, :, top[:, :, None], left[:, None, :]].permute(0, 3, 1, 2)
    return (cut.float() / 255 - MEAN) / STD


model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 16, 5, stride=3),
    torch.nn.ReLU(),
    torch.nn.Flatten(),
    torch.nn.Linear(1024, 10),
).to(device, memory_format=torch.channels_last)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

with connect(Path(__file__).with_name("digits.yaml")) as cache:
    for epoch in cache.epochs("train", 3):
        for batch in epoch.torch(batch_size=32, device=device, channels_last=["image"]):
            loss = cross_entropy(model(augment(batch["image"])), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch.epoch}: {epoch.num_records} records, loss {loss.item():.3f}")
