"""Evaluate after each epoch, over all ranks, each held-out record once:

cachecd run docs/examples/digits.yaml -- torchrun --nproc-per-node=2 docs/examples/evaluation.py

or, alone: python docs/examples/evaluation.py
"""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from cachecd_client import connect

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(32 * 32, 10))
training = model
together = "RANK" in os.environ  # under torchrun
if together:
    dist.init_process_group("gloo")
    training = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(training.parameters(), lr=3e-3)
daemon = None if "CACHECD_ENDPOINT" in os.environ else Path(__file__).with_name("digits.yaml")


@torch.no_grad()
def evaluate(evaluation):
    """(accuracy, mean loss) over the whole set, the same on every rank."""
    sums = torch.zeros(3, dtype=torch.float64)  # right, loss, records
    for batch in evaluation:  # the same records, in the same order, every time
        found = model(batch["image"] / 255)
        losses = cross_entropy(found, batch["label"], reduction="none")
        hits = found.argmax(1) == batch["label"]
        sums += torch.stack([hits.sum(), losses.sum(), torch.tensor(len(hits))])
    if together:
        dist.all_reduce(sums)  # sums, not means: ranks may have different numbers of records
    assert sums[2] == held_out.num_records
    return (sums[:2] / sums[2]).tolist()


# On lease for the whole run: it never changes.
with connect(daemon) as cache, cache.acquire("eval") as held_out:
    evaluation = held_out.torch(batch_size=64)
    for epoch in cache.epochs("train", 3):
        for batch in epoch.torch(batch_size=16):
            optimizer.zero_grad()
            cross_entropy(training(batch["image"] / 255), batch["label"]).backward()
            optimizer.step()
        accuracy, mean_loss = evaluate(evaluation)
        if not together or dist.get_rank() == 0:
            print(
                f"epoch {epoch.epoch}: accuracy {accuracy:.1%}, loss {mean_loss:.3f} "
                f"of {held_out.num_records}"
            )
if together:
    dist.destroy_process_group()
