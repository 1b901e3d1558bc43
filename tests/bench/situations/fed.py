"""3. Batches fed by Python, by queues, by the core: two dense layers of 1024, 128 rows a batch.

The same records and the same network in both frameworks; the network computes for real on this
machine's cores. "nothing" steps on one and the same batch; what a step takes beyond that is the data's
share of it. Python feeds as feed_dict was fed: each step stacks 128 records, which are in memory, in
the loop's own thread. The others read TFRecord shards.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cachecd_client import FileSet
from cachecd_client.schema import infer
from tests.bench.situations.places import Options, by_turns, place, say
from tests.bench.situations.report import Report, table
from tests.client.records import write

PIXELS, HIDDEN, CLASSES, BATCH = 784, 1024, 10, 128
STEPS = 5000  # of the published figures
_NOTHING, _PYTHON = "nothing", "Python"


@dataclass(frozen=True)
class Scale:
    records: int
    steps: int


FULL = Scale(40_000, 500)
SHORT = Scale(512, 6)

Memory = list[tuple[bytes, int]]
Step = Callable[[Any, Any], None]
Ways = dict[str, Callable[[], Iterator[tuple[Any, Any]]]]


def measure(options: Options) -> Report:
    scale = SHORT if options.short else FULL
    chance = np.random.default_rng(1)
    memory = [(chance.bytes(PIXELS), number % CLASSES) for number in range(scale.records)]
    with place(options) as folder:
        files = FileSet(_written(folder, memory))
        frameworks = {"TensorFlow": _tensorflow(files, memory), "PyTorch": _torch(files, memory)}
        found: dict[str, dict[str, list[float]]] = {
            name: {way: [] for way in ways} for name, (_, ways) in frameworks.items()
        }
        each = [(name, way) for name, ways in found.items() for way in ways]
        for repeat, (name, way) in by_turns(each, options.repeats):
            step, ways = frameworks[name]
            taken = _step_ms(step, ways[way](), scale.steps)
            found[name][way].append(taken)
            say(f"{repeat + 1} of {options.repeats}, {name}, {way}: {taken:.2f} ms a step")
    return _report(found)


def _written(folder: Path, memory: Memory) -> list[Path]:
    each = -(-len(memory) // 8)
    records = [
        {"image": np.frombuffer(pixels, np.uint8), "label": label} for pixels, label in memory
    ]
    schema = infer(records[0])
    return [
        write(
            folder / f"{first:06}.tfrecord",
            [schema.encode(record) for record in records[first : first + each]],
            schema,
        )
        for first in range(0, len(records), each)
    ]


def _stacked(memory: Memory) -> Iterator[tuple[Any, Any]]:
    """What a Python loop makes of records: batch after batch, by itself."""
    chance = np.random.default_rng(2)
    while True:
        order = chance.permutation(len(memory))
        for rows in order[: len(order) // BATCH * BATCH].reshape(-1, BATCH):
            some = [memory[row] for row in rows]
            pixels = np.stack([np.frombuffer(one, np.uint8) for one, _ in some])
            yield pixels.astype(np.float32) / 255, np.array([label for _, label in some])


def _endless(passes: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    while True:
        for batch in passes:
            yield batch["image"], batch["label"]


def _tensorflow(files: FileSet, memory: Memory) -> tuple[Step, Ways]:
    import keras
    import tensorflow as tf

    layers = [keras.layers.Dense(HIDDEN, "relu"), keras.layers.Dense(HIDDEN, "relu")]
    model = keras.Sequential([keras.Input((PIXELS,)), *layers, keras.layers.Dense(CLASSES)])
    variables = model.trainable_variables

    @tf.function(reduce_retracing=True)
    def trained(pixels: Any, labels: Any) -> Any:
        if pixels.dtype != tf.float32:
            pixels = tf.cast(pixels, tf.float32) / 255
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(pixels))
            loss = tf.reduce_mean(losses)
        for variable, change in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.01 * change)
        return loss

    def step(pixels: Any, labels: Any) -> None:
        float(trained(tf.convert_to_tensor(pixels), tf.convert_to_tensor(labels)))

    ours = files.tf(BATCH)
    ways: Ways = {
        _NOTHING: lambda: itertools.repeat(next(_endless(ours))),
        _PYTHON: lambda: _stacked(memory),
        "tf.data (tf_dataset())": lambda: _endless(files.tf_dataset(BATCH)),
        "the core (tf())": lambda: _endless(ours),
    }
    return step, ways


def _torch(files: FileSet, memory: Memory) -> tuple[Step, Ways]:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(2)
    hidden = [nn.Linear(PIXELS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU()]
    model = nn.Sequential(*hidden, nn.Linear(HIDDEN, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(pixels: Any, labels: Any) -> None:
        pixels, labels = torch.as_tensor(pixels), torch.as_tensor(labels)
        if pixels.dtype != torch.float32:
            pixels = pixels.float() / 255
        loss = nn.functional.cross_entropy(model(pixels), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()

    def by_dataloader() -> Iterator[tuple[Any, Any]]:
        pixels = np.stack([np.frombuffer(one, np.uint8) for one, _ in memory])
        labels = torch.tensor([label for _, label in memory])
        rows = TensorDataset(torch.from_numpy(pixels), labels)
        loader = DataLoader(rows, BATCH, shuffle=True, drop_last=True)
        while True:
            yield from loader

    ours = files.torch(BATCH)
    ways: Ways = {
        _NOTHING: lambda: itertools.repeat(next(_endless(ours))),
        _PYTHON: lambda: _stacked(memory),
        "DataLoader over tensors in memory": by_dataloader,
        "the core (torch())": lambda: _endless(ours),
    }
    return step, ways


def _step_ms(step: Step, batches: Iterator[tuple[Any, Any]], steps: int) -> float:
    """The mean, after some steps that a framework needs to find its ways."""
    for batch in itertools.islice(batches, 3):
        step(*batch)
    began = time.perf_counter()
    for batch in itertools.islice(batches, steps):
        step(*batch)
    return 1000 * (time.perf_counter() - began) / steps


def _report(found: dict[str, dict[str, list[float]]]) -> Report:
    tables = []
    for name, ways in found.items():
        bare = ways[_NOTHING]
        rows = []
        for way, taken in ways.items():
            shares = [100 * (1 - b / t) for b, t in zip(bare, taken, strict=True)]
            rows.append([way, taken, [STEPS * t / 1000 for t in taken], shares])
        heads = [f"{name}, fed by", "ms a step", f"s for {STEPS:,} steps", "of which data, %"]
        tables.append(table(heads, rows))
    return Report(
        "3. Fed by Python, by queues, by the core",
        f"Two dense layers of {HIDDEN}, {BATCH} rows of {PIXELS} bytes a batch. Published: 18 s by "
        "feed_dict, 11.5 s by queues.",
        tables,
        figures=found,
    )
