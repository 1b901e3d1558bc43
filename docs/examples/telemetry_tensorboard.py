"""What the data costs, in TensorBoard beside the loss: python docs/examples/telemetry_tensorboard.py"""

import logging
import os
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from torch.utils.tensorboard import SummaryWriter

from cachecd_client import connect
from cachecd_client.tensorboard import TelemetryWriter

logging.basicConfig(format="%(message)s")
logging.getLogger("cachecd").setLevel(logging.INFO)  # a line at the end of each epoch

model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(32 * 32, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
step = 0

with (
    connect(Path(__file__).with_name("digits.yaml")) as cache,
    SummaryWriter(os.environ.get("LOGS", "runs")) as writer,  # tensorboard --logdir runs
):
    telemetry = TelemetryWriter(writer, lambda: cache.report("train"), every=10)
    for epoch in cache.epochs("train", 3):
        for batch in epoch.torch(batch_size=32):
            loss = cross_entropy(model(batch["image"].flatten(1) / 255), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            writer.add_scalar("loss", loss.item(), step)
            telemetry.step(step)
            step += 1
        report = epoch.report()
        print(f"{report.records} records at {report.bytes / 1e6:.1f} MB, queue {report.queue:.0%}")
