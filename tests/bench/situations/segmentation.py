"""Images of 512 pixels square with one-hot label maps, three a batch, in Keras.

Each object is a PNG with picture and map side by side. Compared, with the same two models, which
compute for real on this machine's cores: a Keras generator (PIL and NumPy), tf.data (decoding and
expanding in two parallel calls), tf.data that keeps in memory what it has decoded (63 MB here), and
docs/examples/situation_4_label_maps.py: samplers decode once, maps are cached as class numbers, and
expanded on reading. What is kept or cached is so before the clock runs.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cachecd_client.session.cache import Cache
from tests.bench.measuring import turns
from tests.bench.situations import places
from tests.bench.situations.places import EXAMPLES, Options, place, table
from tests.e2e.daemons import ExecutedDaemon, wait_until

BATCH = 3
MODELS = {"small": 8, "larger": 32}  # filters
_OURS, _GENERATOR, _TF_DATA = "cachecd", "generator", "tf.data"
_KEPT = "tf.data, decoded once into memory by cache()"


@dataclass(frozen=True)
class Scale:
    images: int
    steps: int
    models: tuple[str, ...]


FULL = Scale(60, 140, tuple(MODELS))
SHORT = Scale(6, 3, ("small",))


def measure(options: Options) -> str:
    scale = SHORT if options.short else FULL
    example = places.example("situation_4_label_maps")
    with ExitStack() as owned:
        source = owned.enter_context(place(options))
        _pictures(source, scale.images, example)
        paths = sorted(str(path) for path in source.iterdir())
        began = time.perf_counter()
        cache = _cached(owned, owned.enter_context(place(options)), source)
        made = time.perf_counter() - began
        kept = _decoded(paths, example).cache()
        assert sum(1 for _ in kept) == len(paths)  # they are in memory now
        ways: dict[str, Callable[[], Any]] = {
            _GENERATOR: lambda: _generated(paths, example),
            _TF_DATA: lambda: _by_tf_data(paths, example),
            _KEPT: partial(_kept, kept, len(paths), example),
            _OURS: lambda: _ours(cache, example),
        }
        found = {way: {model: list[float]() for model in scale.models} for way in ways}
        for repeat in range(options.repeats):
            for model, way in turns(itertools.product(scale.models, ways), repeat):
                seconds = _seconds_of_fit(example.model_of(MODELS[model]), ways[way], scale)
                found[way][model].append(seconds)
    rows = {way: list(seconds.values()) for way, seconds in found.items()}
    return (
        f"{scale.steps} steps, {BATCH} a batch, {scale.images} pictures; to make the cache took "
        f"{made:.1f} s, once.\n\n{table([f'{model} model, s' for model in scale.models], rows)}"
    )


def _pictures(folder: Path, count: int, example: Any) -> None:
    from PIL import Image

    chance, side = np.random.default_rng(1), example.SIDE
    slope = np.linspace(0, 220, side, dtype=np.float32)
    for number in range(count):
        pixels = np.empty((side, 2 * side, 3), np.uint8)
        pixels[:, :side] = slope[:, None, None] + chance.integers(0, 30, (side, side, 3))
        blocks = chance.integers(0, example.CLASSES, (side // 32, side // 32))
        pixels[:, side:] = blocks.repeat(32, 0).repeat(32, 1)[..., None]
        Image.fromarray(pixels).save(folder / f"{number:04}.png", compress_level=6)


def _cached(owned: ExitStack, folder: Path, source: Path) -> Cache:
    train = {
        "source": {"url": f"file://{source}/", "format": "files"},
        "transform": "situation_4_label_maps:side_by_side",
        "pin": True,
    }
    sampler = {"workers": 2, "path": [str(EXAMPLES)]}
    daemon = owned.enter_context(
        ExecutedDaemon(
            folder, {"train": train}, limit="512MiB", shard_size="16MiB", sampler=sampler
        )
    )
    cache = owned.enter_context(daemon.start().connect(60.0))
    wait_until(lambda: cache.status()["datasets"]["train"]["whole"], 300.0)
    return cache


def _generated(paths: list[str], example: Any) -> Iterator[Any]:
    eye, chance = np.eye(example.CLASSES, dtype=np.float32), np.random.default_rng(0)
    while True:
        order = chance.permutation(len(paths))
        for rows in order[: len(order) // BATCH * BATCH].reshape(-1, BATCH):
            records = [
                example.side_by_side({"payload": Path(paths[row]).read_bytes()}) for row in rows
            ]
            images = np.stack([record["image"] for record in records]).astype(np.float32) / 255
            yield images, np.stack([eye[record["label_map"]] for record in records])


def _decoded(paths: list[str], example: Any) -> Any:
    """A pass over the pictures as tf.data decodes them, in another order each time."""
    import tensorflow as tf

    side = example.SIDE

    def decoded(path: Any) -> Any:
        pixels = tf.ensure_shape(tf.io.decode_png(tf.io.read_file(path), 3), (side, 2 * side, 3))
        return {"image": pixels[:, :side], "label_map": pixels[:, side:, 0]}

    files = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths))
    return files.map(decoded, num_parallel_calls=2)


def _by_tf_data(paths: list[str], example: Any) -> Any:
    records = _decoded(paths, example).repeat().map(example.expanded, num_parallel_calls=2)
    return records.batch(BATCH).prefetch(2)


def _kept(records: Any, count: int, example: Any) -> Any:
    records = records.shuffle(count).repeat().map(example.expanded, num_parallel_calls=2)
    return records.batch(BATCH).prefetch(2)


def _ours(cache: Cache, example: Any) -> Any:
    batches = cache.tf_dataset("train", BATCH, shuffle=True, drop_last=True)
    return batches.map(example.expanded, num_parallel_calls=2)


def _seconds_of_fit(model: Any, batches: Callable[[], Any], scale: Scale) -> float:
    """Of the steps alone: what Keras does once for a model, and after the last step, is left out."""
    import keras

    model.fit(batches(), steps_per_epoch=1, shuffle=False, verbose=0)
    steps_end = 0.0

    class Watch(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_end(self, logs: object = None) -> None:
            nonlocal steps_end
            steps_end = time.perf_counter()

    began = time.perf_counter()
    model.fit(batches(), steps_per_epoch=scale.steps, shuffle=False, verbose=0, callbacks=[Watch()])
    return steps_end - began
