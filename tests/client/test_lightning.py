"""Lightning's Trainer over our loaders."""

import contextlib
import warnings

from cachecd_client.loader.columns import Bytes, Ragged, RaggedBytes
from tests.frameworks import torch

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


@contextlib.contextmanager
def quiet():
    """Without what Lightning has to say to a model of one layer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
