"""A Lightning Trainer over a growing cache: python docs/examples/lightning_trainer.py

It leaves a checkpoint in CHECKPOINTS every ten steps. With CHECKPOINT=FILE, one of an earlier run's, it
goes on where that run was.
"""

import os
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
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


class Batches:
    """A loader without its state, which the DataModule keeps: Lightning would hand it back to the first
    loader, of whatever set."""

    def __init__(self, loader):
        self.loader = loader

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        return iter(self.loader)


class Cached(lightning.LightningDataModule):
    """Each epoch is a new lease; the Trainer asks for it, as it reloads its loaders every epoch."""

    def __init__(self, cache, num_epochs):
        super().__init__()
        self.cache, self.num_epochs = cache, num_epochs
        self.epochs = self.loader = self.state = None

    def train_dataloader(self):
        if self.epochs is None:
            self.epochs = self.cache.epochs("train", self.num_epochs, state=self.state)
        # Lightning moves batches to its device.
        self.loader = next(self.epochs).torch(batch_size=32)
        return Batches(self.loader)

    def state_dict(self):
        return {"loader": self.loader.state_dict()}

    def load_state_dict(self, state):
        self.state = state["loader"]


def main():
    epochs = 3
    every = ModelCheckpoint(os.environ.get("CHECKPOINTS", "checkpoints"), every_n_train_steps=10)
    with connect(Path(__file__).with_name("digits.yaml")) as cache:
        trainer = lightning.Trainer(
            max_epochs=epochs,
            reload_dataloaders_every_n_epochs=1,
            use_distributed_sampler=False,  # the loader divides records among ranks itself
            callbacks=[every],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Digits(), Cached(cache, epochs), ckpt_path=os.environ.get("CHECKPOINT"))
        print(f"{trainer.global_step} steps in {trainer.current_epoch} epochs")


if __name__ == "__main__":
    main()
