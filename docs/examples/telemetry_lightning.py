"""Figures of the data in Lightning's loggers: python docs/examples/telemetry_lightning.py"""

import os
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger
from torch.nn.functional import cross_entropy

from cachecd_client import connect

FIGURES = "wait_share", "queue_p10", "queue_p50", "set_records", "coverage", "reads_per_record"


class Telemetry(Callback):
    def __init__(self, loader, report):
        self.loader, self.report = loader, report

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        report = self.report()
        figures = {f"data/{n}": float(report[n]) for n in FIGURES if report[n] is not None}
        if (queue := self.loader.queue) is not None:  # its fill now; None when the epoch is read
            figures["data/queue"] = queue
        module.log_dict(figures)  # Lightning writes them every `log_every_n_steps`


class Digits(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(32 * 32, 10))

    def training_step(self, batch, index):
        loss = cross_entropy(self.model(batch["image"] / 255), batch["label"])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


logger = CSVLogger(os.environ.get("LOGS", "logs"))
with connect(Path(__file__).with_name("digits.yaml")) as cache, cache.acquire("train") as epoch:
    loader = epoch.torch(batch_size=32)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        log_every_n_steps=10,
        logger=logger,
        callbacks=[Telemetry(loader, epoch.report)],
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    trainer.fit(Digits(), loader)
    print(f"{epoch.report()['steps']} steps, logged in {logger.log_dir}")
