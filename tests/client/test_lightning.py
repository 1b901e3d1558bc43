"""Lightning's Trainer over our loaders."""

import contextlib
import warnings

import pytest

from cachecd_client.loader.columns import Bytes, Ragged, RaggedBytes
from tests.frameworks import torch

N, EACH = 103, 20
BARE = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


def test_lightning_leaves_columns_as_they_are_on_their_way_to_a_device(cache):
    import pytorch_lightning as trainers

    seen = []

    class Model(trainers.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch, _):
            seen.append({name: type(value) for name, value in batch.items()})
            return self.layer(batch["vector"]).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-9)

    trainer = trainers.Trainer(max_steps=1, accelerator="cpu", logger=False, **BARE)
    with cache.acquire("train") as epoch, quiet():
        trainer.fit(Model(), epoch.torch(batch_size=5))
    assert (seen[0]["many"], seen[0]["key"], seen[0]["names"]) == (Ragged, Bytes, RaggedBytes)


@pytest.mark.parametrize("features", [["label"], None])
def test_what_lightning_logs_without_more_is_the_mean_of_the_set(files, features):
    """It weights a batch's mean by the rows that it finds in the batch, strings among them or not."""
    import pytorch_lightning as trainers

    class Model(trainers.LightningModule):
        def validation_step(self, batch, _):
            self.log("accuracy", (batch["label"] >= 99).float().mean())

    trainer = trainers.Trainer(accelerator="cpu", logger=False, **BARE)
    batches = files.torch(64, shuffle=False, drop_last=False, features=features)
    with quiet():
        (found,) = trainer.validate(Model(), batches, verbose=False)
    assert found["accuracy"] == pytest.approx(4 / N)


@contextlib.contextmanager
def quiet():
    """Without Lightning's warnings about models of one layer and of none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
