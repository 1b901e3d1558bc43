"""Figures of the data in TensorBoard, beside the loss: python docs/examples/telemetry_tensorboard.py"""

import logging
import os
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from torch.utils.tensorboard import SummaryWriter

from cachecd_client import connect

FIGURES = "wait_share", "queue_p10", "queue_p50", "set_records", "coverage", "reads_per_record"

logging.basicConfig(format="%(message)s")
logging.getLogger("cachecd").setLevel(logging.INFO)  # a line at the end of each epoch

model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(32 * 32, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
step = 0

with (
    connect(Path(__file__).with_name("digits.yaml")) as cache,
    SummaryWriter(os.environ.get("LOGS", "runs")) as writer,  # tensorboard --logdir runs
):
    for epoch in cache.epochs("train", 3):
        loader = epoch.torch(batch_size=32)
        for batch in loader:
            loss = cross_entropy(model(batch["image"].flatten(1) / 255), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 10 == 0:
                writer.add_scalar("loss", loss.item(), step)
                writer.add_scalar("data/queue", loader.queue, step)  # its fill now, 0 to 1
                report = epoch.report()
                for name in FIGURES:
                    if report[name] is not None:
                        writer.add_scalar(f"data/{name}", report[name], step)
        report = epoch.report()
        print(f"{report['records']} records, queue {report['queue']:.0%}")
