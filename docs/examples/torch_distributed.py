"""Two ranks under torchrun, one daemon for both:

cachecd run docs/examples/digits.yaml -- torchrun --nproc-per-node=2 docs/examples/torch_distributed.py
"""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from cachecd_client import connect

dist.init_process_group("gloo")  # "nccl" with GPUs
rank, world = dist.get_rank(), dist.get_world_size()
model = DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(32 * 32, 64), torch.nn.Linear(64, 10))
)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

with connect() as cache:  # the daemon that `cachecd run` has started
    for epoch in cache.epochs("train", 3):  # the same files on every rank of this node
        seen = torch.zeros(1, dtype=torch.int64)
        for batch in epoch.torch(batch_size=16):  # as many batches on every rank, no record twice
            loss = cross_entropy(model(batch["image"] / 255), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(batch["label"])
        dist.all_reduce(seen)
        if rank == 0:
            print(f"epoch {epoch.epoch}: {world} ranks saw {seen.item()} of {epoch.num_records}")
dist.destroy_process_group()
