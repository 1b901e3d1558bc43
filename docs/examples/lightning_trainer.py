"""A Lightning Trainer over a growing cache: python docs/examples/lightning_trainer.py

or, by two ranks below one daemon:

cachecd run docs/examples/digits.yaml -- torchrun --nproc-per-node=2 docs/examples/lightning_trainer.py

It evaluates after each epoch, and leaves a checkpoint in CHECKPOINTS every ten steps. With
CHECKPOINT=FILE, one of an earlier run's, it goes on where that run was.
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

    def validation_step(self, batch, index):
        hits = self.model(batch["image"] / 255).argmax(1) == batch["label"]
        # Lightning weights each batch's mean by its rows, of which the last one may have fewer.
        self.log("accuracy", hits.float().mean(), batch_size=len(hits), sync_dist=True)

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

    def __init__(self, cache, num_epochs, held_out):
        super().__init__()
        self.cache, self.num_epochs = cache, num_epochs
        self.held_out = Batches(held_out.torch(batch_size=32))
        self.epochs = self.loader = self.begins = self.state = None

    def train_dataloader(self):
        if self.epochs is None:
            self.epochs = self.cache.epochs("train", self.num_epochs, state=self.state)
        # From a checkpoint of an epoch's end Lightning asks twice before it takes a batch.
        if self.loader is None or self.loader.position != self.begins:
            epoch = next(self.epochs, None)
            if epoch is None and self.loader is None:  # a checkpoint of the run's end
                return []
            if epoch is None:
                raise RuntimeError(f"these were {self.num_epochs} epochs, and more are asked for")
            self.loader = epoch.torch(batch_size=32)  # Lightning moves batches to its device
            self.begins = self.loader.position
        return Batches(self.loader)

    def val_dataloader(self):
        return self.held_out

    def state_dict(self):
        return {"loader": self.state if self.loader is None else self.loader.state_dict()}

    def load_state_dict(self, state):
        self.state = state["loader"]


def main():
    epochs = 3
    every = ModelCheckpoint(os.environ.get("CHECKPOINTS", "checkpoints"), every_n_train_steps=10)
    daemon = None if "CACHECD_ENDPOINT" in os.environ else Path(__file__).with_name("digits.yaml")
    with connect(daemon) as cache, cache.acquire("eval") as held_out:
        trainer = lightning.Trainer(
            max_epochs=epochs,
            devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),  # as many as torchrun has started
            reload_dataloaders_every_n_epochs=1,
            use_distributed_sampler=False,  # the loader divides records among ranks itself
            callbacks=[every],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        data = Cached(cache, epochs, held_out)
        trainer.fit(Digits(), data, ckpt_path=os.environ.get("CHECKPOINT"))
        print(f"{trainer.global_step} steps in {trainer.current_epoch} epochs", end="")
        if found := trainer.callback_metrics:  # none from a checkpoint of the run's end
            print(f", accuracy {found['accuracy']:.1%} of {held_out.num_records} records")


if __name__ == "__main__":
    main()
