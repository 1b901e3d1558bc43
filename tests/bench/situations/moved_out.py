"""5. A slow preprocessing step in the input path, and the same step moved out by one line of YAML.

docs/examples/situation_5_moved_out.py turns, crops and denoises photos at random. Compared: it runs in
the input path, in torch's DataLoader and in tf.data, each with two calls at a time; and as the
transform, with four stored variants of each photo. Images a second are what a loop that does nothing
else is given, in a pass over a cache that is whole; what making it took is told beside.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.situations.places import EXAMPLES, Options, by_turns, example, place, say
from tests.bench.situations.report import Report, table
from tests.e2e.daemons import ExecutedDaemon, wait_until

SIDE = 448
_OURS, _TORCH, _TENSORFLOW = "moved out", "in a DataLoader", "in tf.data"


@dataclass(frozen=True)
class Scale:
    photos: int
    batch: int
    seconds: float


FULL = Scale(64, 8, 10.0)
SHORT = Scale(2, 1, 0.1)


def measure(options: Options) -> Report:
    scale = SHORT if options.short else FULL
    with place(options) as source:
        _photos(source, scale.photos)
        ours = example("situation_5_moved_out")
        paths = sorted(str(path) for path in source.iterdir())
        ways: dict[str, Callable[[], Iterator[int]]] = {
            _TORCH: lambda: _by_torch(paths, scale.batch, ours.augmented),
            _TENSORFLOW: lambda: _by_tensorflow(paths, scale.batch, ours.augmented),
        }
        if options.short:
            del ways[_TENSORFLOW]  # to import it takes as long as all else
        found: dict[str, dict[str, list[float]]] = {
            way: {"images_s": [], "made_s": []} for way in [*ways, _OURS]
        }
        for repeat, way in by_turns(list(found), options.repeats):
            values = found[way]
            if way == _OURS:
                with place(options) as folder:
                    images_s, made_s = _moved_out(folder, source, scale, ours.VARIANTS)
                values["made_s"].append(made_s)
            else:
                images_s = _rate(ways[way], scale.seconds)
            values["images_s"].append(images_s)
            say(f"{repeat + 1} of {options.repeats}, {way}: {images_s:.1f} images a second")
    return _report(found, scale, ours.VARIANTS)


def _photos(folder: Path, count: int) -> None:
    """Noisy gradients as JPEG files: what is in them does not matter for what they cost."""
    from PIL import Image

    chance = np.random.default_rng(1)
    slope = np.linspace(0, 200, SIDE)
    for number in range(count):
        pixels = slope[:, None, None] * 0.5 + slope[None, :, None] * 0.5
        pixels = pixels + chance.integers(0, 50, (SIDE, SIDE, 3))
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number:04}.jpg")


def _rate(passes: Callable[[], Iterator[int]], seconds: float) -> float:
    """Images a second, over passes without end, from the first batch on."""
    batches = passes()
    next(batches)
    began, images = time.perf_counter(), 0
    while time.perf_counter() - began < seconds or not images:
        images += next(batches)
    return images / (time.perf_counter() - began)


def _by_torch(paths: list[str], batch_size: int, augmented: Callable[..., Any]) -> Iterator[int]:
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Photos(Dataset[Any]):
        def __len__(self) -> int:
            return len(paths)

        def __getitem__(self, at: int) -> torch.Tensor:
            file = Path(paths[at]).read_bytes()
            return torch.tensor(augmented(file, np.random.default_rng()))

    loader = DataLoader(
        Photos(), batch_size, shuffle=True, num_workers=2, persistent_workers=True, drop_last=True
    )
    while True:
        for batch in loader:
            yield len(batch)


def _by_tensorflow(
    paths: list[str], batch_size: int, augmented: Callable[..., Any]
) -> Iterator[int]:
    import tensorflow as tf

    def prepared(path: bytes) -> Any:
        return augmented(Path(path.decode()).read_bytes(), np.random.default_rng())

    files = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths)).repeat()
    images = files.map(
        lambda path: tf.numpy_function(prepared, [path], tf.uint8), num_parallel_calls=2
    )
    for batch in images.batch(batch_size).prefetch(2):
        yield len(batch)


def _moved_out(folder: Path, source: Path, scale: Scale, variants: int) -> tuple[float, float]:
    """(images a second of the whole cache, seconds until it was whole)."""
    train = {
        "source": {"url": f"file://{source}/", "format": "files"},
        "transform": "situation_5_moved_out:variants",
        "pin": True,
    }
    sampler = {"workers": 2, "path": [str(EXAMPLES)]}
    began = time.perf_counter()
    with (
        ExecutedDaemon(
            folder, {"train": train}, limit="256MiB", shard_size="4MiB", sampler=sampler
        ) as daemon,
        daemon.start().connect(300.0) as cache,
    ):
        wait_until(lambda: cache.status()["datasets"]["train"]["whole"], 600.0)
        made = time.perf_counter() - began
        with cache.acquire("train") as epoch:
            assert epoch.num_records == scale.photos * variants
            loader = epoch.torch(scale.batch, shuffle=True, drop_last=True)

            def passes() -> Iterator[int]:
                while True:
                    for batch in loader:
                        yield len(batch["image"])

            return _rate(passes, scale.seconds), made


def _report(found: dict[str, dict[str, list[float]]], scale: Scale, variants: int) -> Report:
    rates = {way: statistics.median(values["images_s"]) for way, values in found.items()}
    rival = max(rates.keys() - {_OURS}, key=rates.__getitem__)
    pairs = zip(found[_OURS]["images_s"], found[rival]["images_s"], strict=True)
    ratios = [ours / theirs for ours, theirs in pairs]
    rows = [[way, v["images_s"], v["made_s"] or ""] for way, v in found.items()]
    rows.append([f"times the better of the others ({rival})", ratios, ""])
    saved = scale.photos / rates[rival] - scale.photos / rates[_OURS]  # seconds, in a pass
    made = statistics.median(found[_OURS]["made_s"])
    pays = f"{made / saved:.1f} passes over the photos" if saved > 0 else "no number of passes"
    return Report(
        "5. A slow step moved out of the input path",
        f"{scale.photos} JPEG files of {SIDE} pixels square; {variants} stored variants of each. "
        "Published: 2.4 images a second before, 50 after, the training included. Making the variants has "
        f"paid for itself after {pays}.",
        [table(["", "images a second", "s until the cache was whole"], rows, 1)],
        figures=found,
    )
