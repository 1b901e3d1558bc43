"""Lightning's Trainer over our loaders."""

import contextlib
import warnings

import pytest

N, EACH = 103, 20
BARE = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


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
