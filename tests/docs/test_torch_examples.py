"""The examples for PyTorch, JAX and NumPy run as they are: six of seventeen each time, so a third.

In the long form, CACHECD_LONG=1, all of them: three processes under torchrun alone import torch
for 10 s of CPU time. It needs pip install '.[trainers]'.
"""

from __future__ import annotations

import contextlib
import csv
import logging
import os
import re
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tests.client.records import examples, write
from tests.docs.shown import blocks
from tests.e2e.daemons import clean_environ
from tests.frameworks import torch

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
LONG = "CACHECD_LONG" in os.environ
FIGURES = "wait_share", "queue_p10", "queue_p50", "set_records", "coverage", "reads_per_record"
EVALUATED = r"accuracy [\d.]+% of 360 records"


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """One for all, as the examples share their configuration: the first of them fills it."""
    return str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def run(cache, monkeypatch, capsys):
    threads = torch.get_num_threads()
    # Several threads wait for one another in busy loops, even while other processes have the processor.
    torch.set_num_threads(1)

    def run_example(name):
        monkeypatch.setenv("CACHE", cache)
        # In this process, into which torch is loaded; a process of its own would take two seconds more.
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    yield run_example
    torch.set_num_threads(threads)
    logging.getLogger("cachecd").setLevel(logging.NOTSET)  # an example may have changed it


def test_the_plain_loop_learns_and_evaluates_each_held_out_record_once(run):
    assert learned(run("torch_plain.py"))


def test_the_loop_without_a_framework_learns(run):
    assert learned(run("numpy_loop.py"))


def test_evaluation_after_each_epoch_is_of_the_same_records(run):
    found = re.findall(r"epoch (\d): accuracy [\d.]+%, loss [\d.]+ of (\d+)", run("evaluation.py"))
    assert found == [("0", "360"), ("1", "360"), ("2", "360")]


def test_the_loop_that_crops_on_the_device_learns(run):
    found = re.findall(r"epoch (\d): \d+ records, loss ([\d.]+)", run("torch_on_device.py"))
    assert [epoch for epoch, _ in found] == [*"012"]
    assert float(found[-1][1]) < 1  # of ten classes, a guess is 2.3


def test_tensorboard_example_writes_each_figure(run, tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("LOGS", str(tmp_path))
    printed = run("telemetry_tensorboard.py")
    assert len(re.findall(r"(\d+) records, queue (\d+)%", printed)) == 3
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    figures = {f"data/{name}" for name in ("queue", *FIGURES)}
    assert set(events.Tags()["scalars"]) == {"loss", *figures}
    steps = {tag: [e.step for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    assert all(at == steps["loss"] for at in steps.values())


def test_the_loop_in_jax_learns(run):
    printed = run("jax_train.py")
    assert learned(printed)


def learned(printed):
    accuracy, total = re.search(r"accuracy ([\d.]+)% of (\d+)", printed).groups()
    return float(accuracy) > 60 and total == "360"


def by_two_ranks(program, cache, **environ):
    torchrun = ["torch.distributed.run", "--nproc-per-node=2", program]
    ours = [sys.executable, "-m", "cachecd", "run", "digits.yaml", "--"]
    done = subprocess.run(
        [*ours, sys.executable, "-m", *torchrun],
        cwd=EXAMPLES, env=clean_environ({"CACHE": cache, "OMP_NUM_THREADS": "1", **environ}),
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def printed_by(name, **environ):
    done = subprocess.run(
        [sys.executable, name], cwd=EXAMPLES, env=clean_environ(environ),
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


if LONG:

    def test_the_loop_in_jax_learns_on_four_devices(cache):
        four = "--xla_force_host_platform_device_count=4"
        printed = printed_by("jax_train.py", CACHE=cache, XLA_FLAGS=four)
        assert learned(printed)
        assert "on 4 devices" in printed

    def test_two_ranks_evaluate_each_held_out_record_once(cache):
        printed = by_two_ranks("evaluation.py", cache)
        assert len(re.findall(r"accuracy [\d.]+%, loss [\d.]+ of 360", printed)) == 3

    def test_two_ranks_under_torchrun_share_the_records(cache):
        printed = by_two_ranks("torch_distributed.py", cache)
        found = re.findall(r"epoch \d: 2 ranks saw (\d+) of (\d+)", printed)
        assert len(found) == 3
        assert all(0 <= int(records) - int(seen) < 2 * 16 for seen, records in found)

    def test_a_run_that_was_killed_goes_on_with_the_next_batch(cache, tmp_path):
        environ = clean_environ({"CACHE": cache, "STATE": str(tmp_path / "state.json")})
        command = [sys.executable, "-u", "resume.py"]
        with subprocess.Popen(
            command, cwd=EXAMPLES, env=environ, stdout=subprocess.PIPE, text=True
        ) as first:
            before = [first.stdout.readline() for _ in range(7)]
            first.kill()
        after = subprocess.run(
            command, cwd=EXAMPLES, env=environ, capture_output=True, text=True, timeout=100, check=True
        ).stdout.splitlines(keepends=True)  # fmt: skip
        # What was printed last may have come after the state that was saved last, by a batch.
        assert after[0] == before[-1] or step_of(after[0]) > step_of(before[-1])
        assert step_of(after[-1])[0] == 2
        assert not (tmp_path / "state.json").exists()

    def step_of(line):
        return tuple(map(int, re.match(r"epoch (\d+) step (\d+) of", line).groups()))

    @pytest.fixture
    def lightning(monkeypatch):
        """One code under two names, of which the tests install the other."""
        import pytorch_lightning as installed

        known = {"": installed, ".pytorch": installed, ".pytorch.callbacks": installed.callbacks}
        for name, module in (known | {".pytorch.loggers": installed.loggers}).items():
            monkeypatch.setitem(sys.modules, f"lightning{name}", module)

    @pytest.mark.usefixtures("lightning")
    def test_lightning_example_logs_each_figure(run, tmp_path, monkeypatch):
        monkeypatch.setenv("LOGS", str(tmp_path))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Lightning says to a model of one layer
            run("telemetry_lightning.py")
        (path,) = tmp_path.rglob("metrics.csv")
        with open(path) as table:
            rows = list(csv.DictReader(table))
        for name in ("loss", *(f"data/{name}" for name in FIGURES)):
            assert all(row[name] for row in rows), name

    def test_keras_example_logs_each_figure(tmp_path):
        log = tmp_path / "log.csv"
        printed_by("telemetry_keras.py", CACHE=str(tmp_path / "cache"), LOG=str(log))
        with open(log) as table:
            rows = list(csv.DictReader(table))
        assert len(rows) == 3
        for name in ("loss", *(f"data_{name}" for name in FIGURES)):
            assert all(float(row[name]) >= 0 for row in rows), name

    @pytest.mark.parametrize("name", ["keras_fit.py", "keras_growing.py"])
    def test_keras_learns(name, tmp_path):
        assert learned(printed_by(name, CACHE=str(tmp_path)))

    @pytest.mark.parametrize(
        "name", ["lightning_trainer.py", "accelerate_loop.py", "hf_trainer.py"]
    )
    def test_a_frameworks_trainer_runs_to_its_end(name, cache, tmp_path):
        printed = printed_by(name, CACHE=cache, CHECKPOINTS=str(tmp_path))
        assert re.search(r"\d+ (steps|records)", printed)
        assert name == "accelerate_loop.py" or re.search(EVALUATED, printed)

    @pytest.mark.parametrize("name", ["lightning_trainer.py", "hf_trainer.py"])
    def test_two_ranks_of_a_frameworks_trainer_evaluate_each_held_out_record_once(
        name, cache, tmp_path
    ):
        printed = by_two_ranks(name, cache, CHECKPOINTS=str(tmp_path))
        assert len(re.findall(EVALUATED, printed)) == 2

    def test_the_hugging_face_trainer_goes_on_with_the_batch_behind_its_checkpoint(
        cache, tmp_path, monkeypatch
    ):
        example = runpy.run_path(str(EXAMPLES / "hf_trainer.py"))["main"].__globals__
        seen = []

        class Training(example["Training"]):
            def __iter__(self):
                for batch in super().__iter__():
                    seen.append(batch["image"].sum(dim=(1, 2, 3)).tolist())
                    yield batch

        monkeypatch.setitem(example, "Training", Training)
        monkeypatch.setenv("CACHE", cache)
        monkeypatch.setenv("CHECKPOINTS", str(tmp_path))
        example["main"]()
        whole = seen[:]
        seen.clear()
        monkeypatch.setenv("CHECKPOINT", str(tmp_path / "checkpoint-50"))
        example["main"]()
        assert len(whole) == 200
        assert seen == whole[50:]

    # Of Lightning's own use of torch.
    @pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
    @pytest.mark.filterwarnings("ignore::UserWarning:pytorch_lightning")
    @pytest.mark.usefixtures("lightning")
    def test_lightning_goes_on_with_the_batch_behind_its_checkpoint(cache, tmp_path, monkeypatch):
        import pytorch_lightning
        from pytorch_lightning.callbacks import ModelCheckpoint

        from cachecd_client import connect

        monkeypatch.setenv("CACHE", cache)
        example = runpy.run_path(str(EXAMPLES / "lightning_trainer.py"))

        class KilledError(Exception):
            pass

        class Digits(example["Digits"]):
            def __init__(self, last):
                super().__init__()
                self.last, self.seen = last, []

            def training_step(self, batch, index):
                self.seen.append(batch["image"].sum(dim=(1, 2, 3)).tolist())
                if len(self.seen) == self.last:
                    raise KilledError
                return super().training_step(batch, index)

        def fit(last=None, checkpoint=None):
            model = Digits(last)
            every = ModelCheckpoint(
                tmp_path, "{epoch}-{step}", save_top_k=-1, every_n_train_steps=5
            )
            with connect(EXAMPLES / "digits.yaml") as opened, opened.acquire("eval") as held_out:
                trainer = pytorch_lightning.Trainer(
                    max_epochs=2, reload_dataloaders_every_n_epochs=1, logger=False, callbacks=[every],
                    enable_progress_bar=False, enable_model_summary=False, accelerator="cpu",
                )  # fmt: skip
                data = example["Cached"](opened, 2, held_out)
                with contextlib.suppress(KilledError):
                    trainer.fit(model, data, ckpt_path=checkpoint)
            return model.seen, trainer.callback_metrics

        killed, _ = fit(last=9)
        resumed, metrics = fit(checkpoint=tmp_path / "epoch=0-step=5.ckpt")
        assert resumed[:4] == killed[5:]
        assert 0 < metrics["accuracy"] <= 1


def test_what_the_reference_shows_of_torch_and_its_dataloader_reads_every_record_once(tmp_path):
    write(tmp_path / "train-0.tfrecord", examples(range(16)))
    _, first, workers, prepared = blocks("docs/reference.md", "python")
    done = subprocess.run(
        [sys.executable, "-c", first + workers + prepared],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    lines = [line.rpartition("[")[2].strip("]").split(", ") for line in done.stdout.splitlines()]
    labels = [int(label) for line in lines for label in line]
    for loader in range(3):
        assert sorted(labels[16 * loader :][:16]) == list(range(16))
