"""Preparation takes twice as long as the GPU, and every call of the input_fn starts over.

Sound files become spectrograms: real work, in Python. The GPU's step is a sleep of half of what
preparing a batch takes here. A training run calls its input_fn again and again, as an Estimator's does
between evaluations. Compared are the usual one, which lists the files and prepares them, one after the
other, while batches are asked for; the same with as many calls at a time as tf.data likes; the same with
what is prepared kept in a file by `cache()`, which is whole when the first call has gone through; and
docs/examples/situation_1_recordings.py, whose samplers prepare each once. With cachecd every call is as
many steps as there are batches of files, and the cache grows over the first two of them.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.measuring import turns
from tests.bench.situations import places
from tests.bench.situations.places import EXAMPLES, Options, place, table
from tests.e2e.daemons import ExecutedDaemon

RATE, SECONDS = 16_000, 4
CLASSES = ("cat", "dog")
_USUAL, _OURS = "input_fn that prepares", "cachecd"
_PARALLEL, _KEPT = "the same, several at a time", "the same, kept by cache(file)"
_WAYS = (_USUAL, _PARALLEL, _KEPT, _OURS)


@dataclass(frozen=True)
class Scale:
    """`calls` of the input_fn, each of a pass over `files`; of one that prepares at every call, whose steps
    are all alike, two calls of `usual` steps."""

    files: int
    batch: int
    calls: int
    usual: int

    def of(self, way: str) -> tuple[int, int]:
        """(calls, steps of each)."""
        if way in (_USUAL, _PARALLEL):
            return 2, self.usual
        return (self.calls if way == _OURS else 2), self.files // self.batch


FULL = Scale(2048, 64, 4, 8)  # preparing a batch takes about the 2 s of what was published
SHORT = Scale(32, 8, 2, 4)


def measure(options: Options) -> str:
    import soundfile
    import tensorflow as tf

    tf.constant(0)  # what it does once is not what is measured
    scale = SHORT if options.short else FULL
    example = places.example("situation_1_recordings")
    found: dict[str, list[list[dict[str, float]]]] = {way: [] for way in _WAYS}
    with place(options) as source:
        chance = np.random.default_rng(1)
        for number in range(scale.files):
            file = source / CLASSES[number % 2] / f"{number:04}.wav"
            file.parent.mkdir(exist_ok=True)
            soundfile.write(file, chance.normal(0, 0.1, RATE * SECONDS), RATE)
        prepare = partial(_preparing, source, example, scale)
        preparing = _seconds_of_a_batch(prepare)
        step = preparing / 2
        for repeat in range(options.repeats):
            for way in turns(_WAYS, repeat):
                with place(options) as folder, ExitStack() as owned:
                    input_fn = prepare
                    if way == _PARALLEL:
                        input_fn = partial(prepare, at_a_time=tf.data.AUTOTUNE)
                    elif way == _KEPT:
                        input_fn = partial(
                            prepare, at_a_time=tf.data.AUTOTUNE, kept=folder / "kept"
                        )
                    elif way == _OURS:
                        daemon = owned.enter_context(_daemon(folder, source, scale)).start()
                        cache = owned.enter_context(daemon.connect(60.0))
                        input_fn = cache.input_fn("train", scale.batch, label="label")
                    count, steps = scale.of(way)
                    calls = [_call(input_fn, steps, step) for _ in range(count)]
                found[way].append(calls)
    return _report(found, scale, preparing)


def _preparing(
    source: Path, example: Any, scale: Scale, at_a_time: int | None = None, kept: Path | None = None
) -> Any:
    """The usual input_fn: everything anew at each call, or what a pass has `kept` in a file."""
    import soundfile
    import tensorflow as tf

    def prepared(path: bytes) -> tuple[np.ndarray, np.int64]:
        name = Path(path.decode())
        samples, _ = soundfile.read(io.BytesIO(name.read_bytes()), dtype="float32")
        record = {"audio": samples, "label": np.int64(CLASSES.index(name.parent.name))}
        made = example.spectrograms(record)
        return made["spectrogram"], made["label"]

    paths = sorted(str(path) for path in source.glob("*/*.wav"))
    files = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths))
    records = files.map(
        lambda path: tf.numpy_function(prepared, [path], (tf.float32, tf.int64)),
        num_parallel_calls=at_a_time,
    )
    if kept is not None:
        records = records.cache(str(kept))
    return records.repeat().batch(scale.batch).prefetch(2)


def _seconds_of_a_batch(input_fn: Callable[[], Any]) -> float:
    batches = iter(input_fn())
    next(batches)
    began = time.perf_counter()
    for _ in range(3):
        next(batches)
    return (time.perf_counter() - began) / 3


def _daemon(folder: Path, source: Path, scale: Scale) -> ExecutedDaemon:
    train = {
        "source": {
            "url": f"file://{source}/",
            "format": "files",
            "label": {"pattern": "^([^/]+)/", "classes": list(CLASSES)},
        },
        "transform": [
            {"decode_audio": {"rate": RATE, "seconds": SECONDS}},
            "situation_1_recordings:spectrograms",
        ],
        "grow": {"first": scale.batch * 310_000},
    }
    sampler = {"workers": 1, "path": [str(EXAMPLES)]}
    return ExecutedDaemon(
        folder, {"train": train}, limit="1GiB", shard_size="2MiB", sampler=sampler
    )


def _call(input_fn: Callable[[], Any], steps: int, step: float) -> dict[str, float]:
    """One call for so many steps: what it waited for the first batch, and for the others."""
    began = time.perf_counter()
    batches: Iterator[Any] = iter(input_fn())
    next(batches)
    first = time.perf_counter() - began
    waited = 0.0
    for _ in range(steps - 1):
        time.sleep(step)
        asked = time.perf_counter()
        next(batches)
        waited += time.perf_counter() - asked
    time.sleep(step)
    return {"first_s": first, "waited_s": waited, "seconds": time.perf_counter() - began}


def _waited(calls: list[dict[str, float]]) -> float:
    waited = sum(call["first_s"] + call["waited_s"] for call in calls)
    return waited / sum(call["seconds"] for call in calls)


def _report(found: dict[str, list[list[dict[str, float]]]], scale: Scale, preparing: float) -> str:
    rows = {
        way: [
            [100 * _waited(calls[:1]) for calls in runs],
            [100 * _waited(calls[1:]) for calls in runs],
            [calls[1]["first_s"] for calls in runs],
        ]
        for way, runs in found.items()
    }
    heads = ["waited in the first call, %", "in the later calls, %", "second call's first batch, s"]
    return (
        f"{scale.files} files of {SECONDS} s, {scale.batch} a batch; preparing one takes {preparing:.2f} "
        f"s, and a sleep of half of that stands for the GPU.\n\n{table(heads, rows)}"
    )
