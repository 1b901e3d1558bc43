"""A training loop in plain PyTorch: python docs/examples/torch_plain.py"""

from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from cachecd_client import connect

EPOCHS = 3
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 16, 5, stride=4),
    torch.nn.ReLU(),
    torch.nn.Flatten(),
    torch.nn.Linear(784, 10),
).to(device, memory_format=torch.channels_last)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

with connect(Path(__file__).with_name("digits.yaml")) as cache:
    for epoch in cache.epochs("train", EPOCHS):
        for batch in epoch.torch(batch_size=32, device=device, channels_last=True):
            loss = cross_entropy(model(batch["image"] / 255), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch.epoch}: {epoch.num_records} records, loss {loss.item():.3f}")

    right = total = 0
    # Each record once, the same every time; the last batch is short.
    with cache.acquire("eval") as held_out, torch.no_grad():
        for batch in held_out.torch(batch_size=64, device=device, channels_last=True):
            hits = model(batch["image"] / 255).argmax(1) == batch["label"]
            right += int(hits.sum())
            total += len(hits)
    print(f"accuracy {right / total:.1%} of {total}")
