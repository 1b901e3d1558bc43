"""A run's figures in Keras, Lightning and TensorBoard, beside the loss."""

import contextlib
import csv
import warnings
from pathlib import Path

import keras
import pytest
import tensorflow as tf
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from cachecd_client.columns import Bytes, Ragged, RaggedBytes
from cachecd_client.errors import CallerError
from cachecd_client.keras import TelemetryCallback as KerasTelemetry
from cachecd_client.lightning import TelemetryCallback as LightningTelemetry
from cachecd_client.tensorboard import TelemetryWriter

NAMES = {
    "bytes_per_second", "queue", "reads_per_record", "records_per_second", "set_bytes", "set_records",
    "wait_share",
}  # fmt: skip


BARE = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard would show: (step, value) of each tag."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    found = {t: [(e.step, e.value) for e in events.Scalars(t)] for t in events.Tags()["scalars"]}
    for tag in events.Tags()["tensors"]:
        found[tag] = [(e.step, float(tf.make_ndarray(e.tensor_proto))) for e in events.Tensors(tag)]
    return found


@pytest.mark.parametrize("writer", [SummaryWriter, tf.summary.create_file_writer])
def test_a_writer_of_either_framework_gets_a_point_of_each_curve_every_few_steps(
    cache, tmp_path, writer
):
    made = writer(str(tmp_path))
    telemetry = TelemetryWriter(made, lambda: cache.report("train"), every=3)
    step = 0
    for epoch in cache.epochs("train", 2):  # 4 and 6 batches
        for _ in epoch.numpy(batch_size=5):
            step += 1
            telemetry.step(step)
    telemetry.write(step)
    made.close()
    found = curves(tmp_path)
    assert found.keys() == {f"data/{name}" for name in NAMES}
    assert found["data/set_records"] == [(3, 20), (6, 30), (9, 30), (10, 30)]
    assert all(0 <= value <= 1 for _, value in found["data/wait_share"] + found["data/queue"])
    assert [at for at, _ in found["data/wait_share"]] == [3, 6, 9, 10]


def test_what_is_no_writer_is_refused(cache):
    with pytest.raises(CallerError, match="expected a SummaryWriter of"):
        TelemetryWriter("runs/1", cache.report)
    with pytest.raises(CallerError, match="every=0"):
        TelemetryWriter(tf.summary.create_noop_writer(), cache.report, every=0)


def test_keras_has_the_figures_of_each_epoch_in_its_history_and_its_loggers(cache, tmp_path):
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.build((None, 2))
    with cache.acquire("train") as epoch:
        loader = epoch.tf(batch_size=5, label="label", features=["vector"])

        def passes():
            while True:
                for features, label in loader:
                    yield features["vector"] / 1000, label

        history = model.fit(
            passes(),
            epochs=2,
            steps_per_epoch=len(loader),
            shuffle=False,
            verbose=0,
            callbacks=[
                KerasTelemetry(epoch.report),
                keras.callbacks.CSVLogger(str(tmp_path / "log.csv")),
            ],
        ).history
    assert {f"data_{name}" for name in NAMES} | {"loss"} == history.keys()
    assert history["data_set_records"] == [20, 20]
    assert all(0 <= share <= 1 for share in history["data_wait_share"])
    with open(tmp_path / "log.csv") as table:
        assert [row["data_set_records"] for row in csv.DictReader(table)] == ["20", "20"]


def test_lightning_logs_the_figures_at_the_steps_of_the_loss(cache, tmp_path):
    """By its old name: under its new one it is the same, and takes as long to import again."""
    import pytorch_lightning as trainers
    from pytorch_lightning.loggers import CSVLogger

    class Model(trainers.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch, _):
            loss = self.layer(batch["vector"]).square().mean()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-9)

    callback = LightningTelemetry(lambda: cache.report("train"))
    assert isinstance(callback, trainers.Callback)
    assert isinstance(callback, LightningTelemetry)
    logger = CSVLogger(str(tmp_path))
    trainer = trainers.Trainer(
        max_epochs=2,
        log_every_n_steps=3,
        logger=logger,
        callbacks=[callback],
        accelerator="cpu",
        **BARE,
    )
    with cache.acquire("train") as epoch, quiet():
        trainer.fit(Model(), epoch.torch(batch_size=5, features=["vector"]))
    at = steps_of(logger)
    assert at["data/wait_share"] == at["loss"] == [2, 5]
    assert {name for name in at if name.startswith("data/")} == {f"data/{name}" for name in NAMES}


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


def test_with_several_optimizers_lightning_logs_the_figures_at_the_steps_of_the_loss_too(
    cache, tmp_path
):
    import pytorch_lightning as trainers
    from pytorch_lightning.loggers import CSVLogger

    class Two(trainers.LightningModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.layers = torch.nn.ModuleList([torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)])

        def training_step(self, batch, _):
            for layer, optimizer in zip(self.layers, self.optimizers(), strict=True):
                loss = layer(batch["vector"]).square().mean()
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()
            self.log("loss", loss)

        def configure_optimizers(self):
            return [torch.optim.SGD(layer.parameters(), lr=1e-9) for layer in self.layers]

    logger = CSVLogger(str(tmp_path))
    callback = LightningTelemetry(lambda: cache.report("train"))
    trainer = trainers.Trainer(
        max_epochs=2,
        log_every_n_steps=3,
        accelerator="cpu",
        logger=logger,
        callbacks=[callback],
        **BARE,
    )
    with cache.acquire("train") as epoch, quiet():
        trainer.fit(Two(), epoch.torch(batch_size=5, features=["vector"]))
    at = steps_of(logger)
    assert at["data/wait_share"] == at["loss"] == [2, 5]


def steps_of(logger):
    """At which each figure was logged."""
    with open(Path(logger.log_dir) / "metrics.csv") as table:
        rows = list(csv.DictReader(table))
    return {name: [int(row["step"]) for row in rows if row.get(name)] for name in rows[0]}


@contextlib.contextmanager
def quiet():
    """Without what Lightning has to say to a model of one layer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
