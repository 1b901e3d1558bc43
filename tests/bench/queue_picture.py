"""Draws a healthy and a starving queue: `python -m tests.bench.queue_picture docs/queue.svg`

One loader decodes the same pictures for two loops. One loop computes longer than a batch takes to make, the
other half as long. Every few seconds both pause, as for a checkpoint, so that the queue fills.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from collections.abc import Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cachecd.sampler.encoding import encode, infer
from cachecd_client import FileSet, Image
from tests.client.records import write

BATCH, PICTURES, FILES, SECONDS = 32, 512, 64, 12.0
PACES = {
    "Healthy: a step takes 1.5 times as long as a batch": 1.5,
    "Starving: a step takes half as long": 0.5,
}
_PAUSE_EVERY, _PAUSE = 4.0, 0.6  # seconds


class Step(NamedTuple):
    """The second of a step, the fill of the queue after its batch, and the seconds it waited."""

    at: float
    fill: float
    waited: float


def pictures(folder: Path) -> FileSet:
    from PIL import Image as Picture

    chance = np.random.default_rng(1)
    examples = []
    for number in range(PICTURES):
        coarse = chance.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        body = io.BytesIO()
        Picture.fromarray(coarse).resize((512, 512)).save(body, "JPEG", quality=90)
        examples.append({"payload": body.getvalue(), "number": number})
    schema = infer(examples[0])
    encoded = [encode(schema, each) for each in examples]
    paths = [folder / f"pictures-{number}.tfrecord" for number in range(FILES)]
    return FileSet([write(path, encoded, schema) for path in paths])


def seconds_of_a_batch(files: FileSet) -> float:
    loader = files.numpy(BATCH, decode={"payload": Image(224, crop="random")})
    began = time.monotonic()
    steps = sum(1 for _ in islice(loader, 100))
    loader.close()
    return (time.monotonic() - began) / steps


def measured(files: FileSet, compute: float) -> list[Step]:
    loader = files.numpy(BATCH, decode={"payload": Image(224, crop="random")})
    began, pause_at, steps = time.monotonic(), _PAUSE_EVERY, []
    filled = waited = 0.0
    for _ in loader:
        at = time.monotonic() - began
        steps.append(Step(at, loader.queue_filled - filled, loader.seconds_waited - waited))
        filled, waited = loader.queue_filled, loader.seconds_waited
        if at >= SECONDS:
            loader.close()
            break
        if at >= pause_at:
            pause_at += _PAUSE_EVERY
            time.sleep(_PAUSE)
        time.sleep(compute)
    return steps


def draw(runs: dict[str, list[Step]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "cachecd"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(runs), 1, figsize=(9, 5), sharex=True, squeeze=False)
    for axis, (title, steps) in zip(axes[:, 0], runs.items(), strict=True):
        _panel(axis, title, steps)
    axes[-1, 0].set_xlabel("seconds")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _panel(axis: Any, title: str, steps: list[Step]) -> None:
    seconds = sum(step.waited for step in steps)
    axis.set_title(f"{title}; waited {seconds / steps[-1].at:.0%} of the time", loc="left", size=10)
    axis.plot([s.at for s in steps], [s.fill for s in steps], color="#0072b2", lw=1.4, label="fill")
    share = [s.waited / max(1e-9, s.at - b.at) for b, s in pairwise(steps)]
    axis.fill_between(
        [s.at for s in steps[1:]], share, step="pre", color="#d55e00", alpha=0.45, lw=0,
        label="share of the step that waited",
    )  # fmt: skip
    axis.set_ylim(-0.03, 1.05)
    axis.set_xlim(0, SECONDS)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(loc="center right", fontsize=8, framealpha=0.9)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("picture", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        files = pictures(Path(folder))
        batch = seconds_of_a_batch(files)
        runs = {title: measured(files, pace * batch) for title, pace in PACES.items()}
    draw(runs, options.picture)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
