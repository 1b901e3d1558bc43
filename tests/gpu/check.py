"""Copies to a CUDA device, measured where there is one: `python -m tests.gpu.check`, within a minute.

Prints figures, and a bar for each. Exit status: 0, all bars are met; 1, one is not; 2, no GPU.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image as Pillow

from cachecd.sampler.encoding import encode, infer
from cachecd_client import FileSet, Image
from tests.client.records import write

_WIDTH = 128 * 128 * 3
_BATCH = 64
_BATCHES = 60
# On the device, as docs/semantics.md promises; and beside them the one that the loop's variable keeps.
_PROMISED, _KEPT = 3, 1
# What was asked of the allocator, which rounds it up.
_ASKED = "requested_bytes.all"


class Loads:
    """Work for the device, in one launch for each batch: a CUDA graph that reads a static batch."""

    def __init__(self, device: torch.device, products: int) -> None:
        self.image = torch.zeros(_BATCH, _WIDTH, dtype=torch.uint8, device=device)
        self.label = torch.zeros(_BATCH, 1, dtype=torch.int64, device=device)
        #: Batches whose rows were not what their labels say.
        self.wrong = torch.zeros((), dtype=torch.int64, device=device)
        self._square = torch.ones(2048, 2048, device=device)
        aside = torch.cuda.Stream(device)
        aside.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(aside):
            self._work(products)
        torch.cuda.current_stream(device).wait_stream(aside)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._work(products)
        self.wrong.zero_()

    def _work(self, products: int) -> None:
        for _ in range(products):
            torch.mm(self._square, self._square)
        # After the work: a batch whose memory was taken away meanwhile shows here.
        self.wrong += (self.image != (self.label % 251).to(torch.uint8)).any().to(torch.int64)

    def step(self, batch: dict[str, Any]) -> None:
        self.image.copy_(batch["image"].reshape(_BATCH, _WIDTH))
        self.label.copy_(batch["label"].reshape(_BATCH, 1))
        self._graph.replay()


class _Pinned(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """The same batches in memory, for torch's own loader."""

    def __init__(self, batches: list[dict[str, torch.Tensor]]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return self._batches[index]


def written(folder: Path) -> Path:
    """Records whose bytes are all their label, so that each batch shows whether it is whole."""

    def values(label: int) -> dict[str, Any]:
        return {"image": np.full((_WIDTH,), label % 251, np.uint8), "label": label}

    described = infer(values(1))
    records = [encode(described, values(label)) for label in range(_BATCH * _BATCHES)]
    return write(folder / "a.tfrecord", records, described)


def on_the_device(
    batches: Iterable[dict[str, Any]], device: torch.device
) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield {name: value.to(device, non_blocking=True) for name, value in batch.items()}


def timed(batches: Iterable[dict[str, Any]], load: Loads | None = None) -> float:
    """Seconds until the device has done all of it."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for batch in batches:
        if load is not None:
            load.step(batch)
    torch.cuda.synchronize()
    return time.perf_counter() - began


def check(device: torch.device, bars: Bars, folder: Path) -> None:
    files = FileSet(written(folder))
    batch_bytes = _BATCH * (_WIDTH + 8)

    def ours() -> Iterable[dict[str, Any]]:
        return files.torch(_BATCH, device=device)

    timed(ours())  # reads the file, and takes pinned memory
    held = [{n: v.clone() for n, v in batch.items()} for batch in files.torch(_BATCH)]
    theirs = torch.utils.data.DataLoader(_Pinned(held), batch_size=None, pin_memory=True)
    timed(on_the_device(theirs, device))
    alone, reference = timed(ours()), timed(on_the_device(theirs, device))
    rate = _BATCHES * batch_bytes / alone / 1e9
    bars.say(
        f"throughput: {rate:.2f} GB/s from files, {rate * alone / reference:.2f} GB/s of a pinned "
        "DataLoader over batches in memory",
        alone <= 1.25 * reference,
    )

    load = Loads(device, products=40)
    static = {"image": load.image, "label": load.label}
    computing = timed([static] * _BATCHES, load)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_stats(device)[f"{_ASKED}.current"]
    both = timed(ours(), load)
    most = torch.cuda.memory_stats(device)[f"{_ASKED}.peak"] - before
    bars.say(
        f"device memory: {most / batch_bytes:.1f} batches at most, with a loop that only launches graphs",
        most <= (_PROMISED + _KEPT) * batch_bytes,
    )
    bars.say(
        f"overlap: {both:.2f} s; computing alone {computing:.2f} s, copying alone {alone:.2f} s",
        both <= 1.1 * max(computing, alone) + 0.05,
    )
    bars.say("every batch whole, under a CUDA graph", int(load.wrong) == 0)

    load.wrong.zero_()
    aside = torch.cuda.Stream(device)
    aside.wait_stream(torch.cuda.current_stream(device))
    for number, batches in enumerate(
        (ours(), ours())
    ):  # on the side, then on the first stream again
        with torch.cuda.stream(aside if number == 0 else torch.cuda.default_stream(device)):
            for batch in batches:
                load.step(batch)
        torch.cuda.default_stream(device).wait_stream(aside)
    bars.say("every batch whole, on a side stream and then on the first", int(load.wrong) == 0)


def pictures(folder: Path, count: int) -> Path:
    """Smooth JPEGs of different sizes, and the number of each."""

    def values(label: int) -> dict[str, Any]:
        noise = np.random.default_rng(label).integers(0, 256, (8, 8, 3), np.uint8)
        encoded = io.BytesIO()
        size = (300 + label % 200, 500 - label % 300)
        Pillow.fromarray(noise).resize(size).save(encoded, "JPEG")
        return {"image": encoded.getvalue(), "label": label}

    described = infer(values(1))
    records = [encode(described, values(label)) for label in range(count)]
    return write(folder / "pictures.tfrecord", records, described)


def with_mean(batch: dict[str, Any], random: np.random.Generator) -> dict[str, Any]:
    image: np.ndarray[Any, np.dtype[np.uint8]] = batch["image"]
    noise = random.random(len(image), np.float32)
    return {**batch, "mean": image.mean((1, 2, 3), np.float64), "noise": noise}


def check_decoded(device: torch.device, bars: Bars, folder: Path, count: int = 1024) -> None:
    files = FileSet(pictures(folder, count))

    def batches(to: torch.device | None, **options: Any) -> Iterable[dict[str, torch.Tensor]]:
        decode = {"image": Image(224, crop="random", flip=0.5)}
        return files.torch(_BATCH, device=to, decode=decode, **options)

    def pairs(**options: Any) -> Iterator[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]]:
        return zip(batches(None, **options), batches(device, **options), strict=True)

    def same(here: dict[str, torch.Tensor], there: dict[str, torch.Tensor]) -> bool:
        are_there = all(value.device.type == device.type for value in there.values())
        return are_there and all(torch.equal(here[name], there[name].cpu()) for name in here)

    whole = normalised = True
    for here, there in pairs(channels_last=["image"]):
        whole &= same(here, there) and there["image"].shape == (_BATCH, 3, 224, 224)
        floats = []
        for batch in (here, there):
            to = batch["image"].device
            mean = torch.tensor([123.675, 116.28, 103.53], device=to)
            std = torch.tensor([58.395, 57.12, 57.375], device=to)
            floats.append((batch["image"] - mean.view(3, 1, 1)) / std.view(3, 1, 1))
        normalised &= torch.allclose(floats[0], floats[1].cpu(), rtol=1e-6, atol=1e-6)
    bars.say("decoded batches are those of the CPU", whole)
    bars.say("normalised on the device, by the line of docs/images.md", normalised)
    prepared = True
    for here, there in pairs(prepare=with_mean):
        means = there["image"].double().mean((1, 2, 3))
        prepared &= same(here, there) and torch.allclose(means, there["mean"])
    bars.say("prepare= makes each batch before the copy", prepared)
    if device.type == "cuda":
        timed(batches(None))
        alone, both = timed(batches(None)), timed(batches(device))
        rate = count // _BATCH * _BATCH / both
        bars.say(
            f"decoding: {rate:.0f} images/s to the device; {both:.2f} s, in memory {alone:.2f} s",
            both <= 1.15 * alone + 0.05,
        )


class Bars:
    def __init__(self) -> None:
        self.missed = 0

    def say(self, what: str, met: bool) -> None:
        self.missed += not met
        print(f"{'pass' if met else 'FAIL'}  {what}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", help="a CUDA device (default: cuda)")
    device = torch.device(parser.parse_args().device)
    if device.type != "cuda":
        parser.error(f"--device {device}, expected a CUDA device")
    if not torch.cuda.is_available():
        print("no GPU here: torch.cuda.is_available() is False; nothing was checked")
        return 2
    bars = Bars()
    with tempfile.TemporaryDirectory() as folder:
        device = torch.device("cuda", device.index or 0)
        check(device, bars, Path(folder))
        check_decoded(device, bars, Path(folder))
    return 1 if bars.missed else 0


if __name__ == "__main__":
    sys.exit(main())
