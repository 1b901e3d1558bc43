"""A Lightning Trainer over a growing cache: python docs/examples/lightning_trainer.py"""

from pathlib import Path

import lightning
import torch
from torch.nn.functional import cross_entropy

from cachecd_client import connect


class Digits(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(32 * 32, 10))

    def training_step(self, batch, index):
        return cross_entropy(self.model(batch["image"] / 255), batch["label"])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


class Cached(lightning.LightningDataModule):
    """Each epoch is a new lease; the Trainer asks for it, as it reloads its loaders every epoch."""

    def __init__(self, cache, epochs):
        super().__init__()
        self.epochs = cache.epochs("train", epochs)

    def train_dataloader(self):
        return next(self.epochs).torch(batch_size=32)  # Lightning moves batches to its device


EPOCHS = 3
with connect(Path(__file__).with_name("digits.yaml")) as cache:
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        reload_dataloaders_every_n_epochs=1,
        use_distributed_sampler=False,  # the loader divides records among ranks itself
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Digits(), Cached(cache, EPOCHS))
    print(f"{trainer.global_step} steps in {trainer.current_epoch} epochs")
