"""3. Batches fed by Python, by queues, by the core: two dense layers of 1024, 128 rows a batch.

The same records and the same network in both frameworks; the network computes for real on this
machine's cores. "nothing" steps on one and the same batch; what a step takes beyond that is the data's
share of it. All batches are uint8, which the step makes numbers of. Python feeds as feed_dict was fed:
each step stacks 128 records, which are in memory, in the loop's own thread; or another thread does and
puts them into a queue. What each of the others reads is in its name.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cachecd_client import FileSet
from cachecd_client.schema import infer
from tests.bench.feeding import by_a_thread
from tests.bench.situations.places import Options, by_turns, place, say
from tests.bench.situations.report import Report, table
from tests.client.records import write

PIXELS, HIDDEN, CLASSES, BATCH = 784, 1024, 10, 128
STEPS = 5000  # of the published figures
_NOTHING, _PYTHON, _QUEUE = "nothing", "Python", "Python in another thread, by a queue"


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
    chance = np.random.default_rng(2)
    while True:
        order = chance.permutation(len(memory))
        for rows in order[: len(order) // BATCH * BATCH].reshape(-1, BATCH):
            some = [memory[row] for row in rows]
            pixels = np.stack([np.frombuffer(one, np.uint8) for one, _ in some])
            yield pixels, np.array([label for _, label in some])


def _together(memory: Memory) -> tuple[Any, Any]:
    pixels = np.stack([np.frombuffer(one, np.uint8) for one, _ in memory])
    return pixels, np.array([label for _, label in memory])


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
        pixels = tf.cast(pixels, tf.float32) / 255
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(pixels))
            loss = tf.reduce_mean(losses)
        for variable, change in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.01 * change)
        return loss

    def step(pixels: Any, labels: Any) -> None:
        float(trained(tf.convert_to_tensor(pixels), tf.convert_to_tensor(labels)))

    def from_memory() -> Iterator[tuple[Any, Any]]:
        pixels, labels = _together(memory)
        rows = tf.data.Dataset.from_tensor_slices((pixels, labels)).shuffle(len(labels)).repeat()
        return iter(rows.batch(BATCH).prefetch(tf.data.AUTOTUNE))

    def from_files() -> Iterator[tuple[Any, Any]]:
        form = {
            "image": tf.io.FixedLenFeature([], tf.string),
            "label": tf.io.FixedLenFeature([], tf.int64),
        }

        def parsed(serialized: Any) -> tuple[Any, Any]:
            found = tf.io.parse_example(serialized, form)
            return tf.io.decode_raw(found["image"], tf.uint8, fixed_length=PIXELS), found["label"]

        names = tf.data.Dataset.from_tensor_slices(files.files).shuffle(len(files.files))
        records = tf.data.TFRecordDataset(names).shuffle(10_000).repeat()
        batches = records.batch(BATCH, drop_remainder=True)
        return iter(batches.map(parsed, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE))

    ours = files.tf(BATCH)
    ways: Ways = {
        _NOTHING: lambda: itertools.repeat(next(_endless(ours))),
        _PYTHON: lambda: _stacked(memory),
        _QUEUE: lambda: by_a_thread(_stacked(memory)),
        "tf.data over tensors in memory": from_memory,
        "tf.data over TFRecord files": from_files,
        "tf.data over TFRecord files (tf_dataset())": lambda: _endless(files.tf_dataset(BATCH)),
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
        pixels, labels = torch.as_tensor(pixels).float() / 255, torch.as_tensor(labels)
        loss = nn.functional.cross_entropy(model(pixels), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()

    def by_dataloader(workers: int) -> Iterator[tuple[Any, Any]]:
        rows = TensorDataset(*map(torch.from_numpy, _together(memory)))
        loader = DataLoader(
            rows,
            BATCH,
            shuffle=True,
            drop_last=True,
            num_workers=workers,
            persistent_workers=workers > 0,
        )
        while True:
            yield from loader

    ours = files.torch(BATCH)
    ways: Ways = {
        _NOTHING: lambda: itertools.repeat(next(_endless(ours))),
        _PYTHON: lambda: _stacked(memory),
        _QUEUE: lambda: by_a_thread(_stacked(memory)),
        "DataLoader over tensors in memory": lambda: by_dataloader(0),
        "DataLoader over tensors in memory, 2 workers": lambda: by_dataloader(2),
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
    taken = time.perf_counter() - began
    if isinstance(batches, Generator):
        batches.close()
    return 1000 * taken / steps


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
