"""The pictures that the image benchmark decodes: crops of Debian's wallpapers, made once.

A picture is cut at a random place, between a half and all of the wallpaper's shorter side,
reduced to its size: what photographs of a data set are, which were larger once, too.
"""

from __future__ import annotations

import functools
import io
import json
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from cachecd.sampler.encoding import encode
from cachecd_client import _core
from cachecd_client.schema import Feature, Schema
from tests.bench.image_decoders import COLORS

PACKAGES = (
    "mate-backgrounds",
    "gnome-backgrounds",
    "plasma-workspace-wallpapers",
    "ukui-wallpapers",
)
QUALITY = 90
CLASSES = 20
_LEAST_SIDE = 1000  # pixels, of a wallpaper
_LEAST_DETAIL = 0.17  # bytes a pixel, of its JPEG at this size:
_SAMPLE = (350, 350)
REPEATS = 8  # of each picture in the decoders' shards, so that a pass is long beside its start
_SHARD = 8 << 20
_LABEL = Feature("label", "int64", "int64", ())


@dataclass(frozen=True)
class Pictures:
    """The folder `root`; a set is made when it is first asked for, all or nothing."""

    root: Path
    count: int = 600  # of each set for the decoders
    job: int = 6000  # of the whole job
    synthetic: bool = False  # no downloads: smooth noise instead of wallpapers

    @property
    def folder(self) -> Path:
        return self.root / f"images-{self.count}-{self.job}{'-synthetic' * self.synthetic}"

    def decoding(self, form: str, size: int) -> Path:
        """A folder with `files/NUMBER.FORM`, jpg or png, or masks, and these in NUMBER.tfrecord.

        Of form pixels, the records have uint8 [size, size, 3] in place of the files' bytes.
        """
        if form == "masks":
            return self._masks()
        shape = (size, size, 3) if form == "pixels" else ()

        def fill(folder: Path) -> None:
            (folder / "files").mkdir()
            for number, body in enumerate(self._made(self.count, form, size)):
                (folder / "files" / f"{number:05d}.{form}").write_bytes(body)
            write_shards(folder, REPEATS, shape)

        return self._once(f"{form}{size}", fill)

    def classes(self) -> Path:
        """JPEGs whose sides are 200 to 500, as CLASS/NUMBER.jpg."""

        def fill(folder: Path) -> None:
            for number, body in enumerate(self._made(self.job, "jpg")):
                path = folder / f"class{number % CLASSES:02d}" / f"{number:05d}.jpg"
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(body)

        return self._once("classes", fill)

    def _masks(self) -> Path:
        """PNGs of 256 x 256 in the colors of twenty classes, in regions of 16 x 16 and larger."""

        def fill(folder: Path) -> None:
            (folder / "files").mkdir()
            chance = np.random.default_rng(3)
            for number in range(self.count):
                coarse = chance.integers(0, len(COLORS), (16, 16))
                mask = np.array(COLORS, np.uint8)[np.kron(coarse, np.ones((16, 16), np.int64))]
                Image.fromarray(mask).save(folder / "files" / f"{number:05d}.png")
            write_shards(folder, REPEATS)

        return self._once("masks", fill)

    def _once(self, name: str, fill: Callable[[Path], None]) -> Path:
        made = self.folder / name
        if not made.exists():
            draft = made.with_name(name + ".new")
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
            fill(draft)
            draft.rename(made)
        return made

    def _made(self, count: int, form: str, size: int = 0) -> Iterator[bytes]:
        """`count` pictures; without `size` each side is drawn from 200 to 500."""
        if self.synthetic:
            yield from (_picture(None, number, form, size) for number in range(count))
            return
        wallpapers = self._wallpapers()
        # Pictures of one wallpaper follow each other, because decoding it takes most of the time.
        papers = [wallpapers[number * len(wallpapers) // count] for number in range(count)]
        each = -(-count // len(wallpapers))
        with ProcessPoolExecutor(2) as pool:
            yield from pool.map(
                _picture, papers, range(count), repeat(form), repeat(size), chunksize=each
            )

    def _wallpapers(self) -> list[Path]:
        folder = self.root / "wallpapers"
        if not folder.exists():
            draft = folder.with_name("wallpapers.new")
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
            subprocess.run(["apt-get", "download", *PACKAGES], cwd=draft, check=True)
            for package in draft.glob("*.deb"):
                subprocess.run(["dpkg-deb", "-x", package, draft], check=True)
                package.unlink()
            for path in draft.rglob("*"):
                if path.is_symlink() or (path.is_file() and not _is_detailed(path)):
                    path.unlink()
            draft.rename(folder)
        return sorted(path for path in folder.rglob("*") if path.is_file())


def _is_detailed(path: Path) -> bool:
    """Whether it is a large picture, and more than a gradient: as many bytes as a photograph's JPEG."""
    if path.suffix not in (".jpg", ".png", ".webp"):
        return False
    image = _opened(path)
    side = min(image.size)
    if side < _LEAST_SIDE:
        return False
    sample = image.resize(_SAMPLE, box=(0, 0, side, side), reducing_gap=3.0)
    return len(_jpeg(sample)) >= _LEAST_DETAIL * sample.width * sample.height


@functools.lru_cache(1)
def _opened(path: Path) -> Image.Image:
    return Image.open(path).convert("RGB")


def _picture(path: Path | None, number: int, form: str, size: int) -> bytes:
    """The picture of this number, encoded: a function of the wallpaper and the number."""
    chance = random.Random(number)
    width, height = (size, size) if size else (chance.randint(200, 500), chance.randint(200, 500))
    if path is None:
        noise = np.random.default_rng(number).integers(0, 256, (16, 16, 3), np.uint8)
        image = Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)
    else:
        whole = _opened(path)
        scale = chance.uniform(0.5, 1) * min(whole.width / width, whole.height / height)
        scale = max(1.0, scale)
        left = chance.uniform(0, whole.width - scale * width)
        top = chance.uniform(0, whole.height - scale * height)
        box = (left, top, left + scale * width, top + scale * height)
        image = whole.resize((width, height), Image.Resampling.LANCZOS, box=box, reducing_gap=3.0)
    if form == "jpg":
        return _jpeg(image)
    if form == "pixels":
        return image.tobytes()
    encoded = io.BytesIO()
    image.save(encoded, "PNG")
    return encoded.getvalue()


def _jpeg(image: Image.Image) -> bytes:
    encoded = io.BytesIO()
    image.save(encoded, "JPEG", quality=QUALITY)
    return encoded.getvalue()


def write_shards(folder: Path, repeats: int, shape: tuple[int, ...] = ()) -> None:
    """The files of `folder/files` as records: `payload`, and the number of the file as `label`.

    `shape`: of the pixels that a file is.
    """
    payload = Feature("payload", "bytes", "uint8" if shape else "bytes", shape, raw=bool(shape))
    schema = Schema((payload, _LABEL))
    meta = json.dumps({"schema": schema.to_json()})
    bodies: list[Any] = [path.read_bytes() for path in sorted((folder / "files").iterdir())]
    if shape:
        bodies = [np.frombuffer(body, np.uint8).reshape(shape) for body in bodies]
    records = [
        encode(schema, {"payload": body, "label": number}) for number, body in enumerate(bodies)
    ]
    records *= repeats
    each = max(1, (_SHARD * len(records)) // sum(map(len, records)))
    for shard, first in enumerate(range(0, len(records), each)):
        writer = _core.ShardWriter(str(folder / f"{shard:05d}.tfrecord"))
        for record in records[first : first + each]:
            assert writer.append(record)
        writer.finish(meta)
