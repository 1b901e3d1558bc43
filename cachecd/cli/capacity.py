"""How many of a dataset's images a limit holds: as image files, and as pixels."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from cachecd.config import Config
from cachecd.ledger import METADATA_SLACK
from cachecd.quantities import approximate_size
from cachecd.sample import Record, Sample, Sampler
from cachecd.sampleview import image_suffix
from cachecd.survey import image_size

LOOKED_AT = 32  # records
_PAGES = 10  # of a listing, to count the images
_IN_SIDECAR = 20  # bytes of a record
_PER_SHARD = 8 << 10  # bytes of a sidecar's text, and the rounding of two files to blocks
_NAMES = {"jpg": "JPEG", "tif": "TIFF", "webp": "WebP"}
_CHANNELS = 3  # as `decode_image` gives them


@dataclass(frozen=True, slots=True)
class Capacity:
    """About how many images `limit_bytes` hold in each form; None where that is not known.

    `images`: how many there are. `shape`: height and width of all images looked at, if they agree.
    `file_bytes` and `pixel_bytes`: of a record.
    """

    limit_bytes: int
    images: int | None
    formats: tuple[str, ...]
    file_bytes: int
    as_files: int
    shape: tuple[int, int] | None
    pixel_bytes: int | None
    as_pixels: int | None

    def __str__(self) -> str:
        total = "" if self.images is None else f" of {self.images:,}"
        names = " and ".join(self.formats)
        text = f"{approximate_size(self.limit_bytes)} hold about {self.as_files:,}{total} images as {names}"
        if self.as_pixels is None:
            return text
        extent = "of several sizes" if self.shape is None else "{} x {}".format(*self.shape)
        return f"{text}, or {self.as_pixels:,} as pixels ({extent})"


def capacity(config: Config, sampler: Sampler, sample: Sample, limit: int) -> Capacity | None:
    """From LOOKED_AT records of a sample; None if they hold no images.

    Where the transform decodes images, the same units are fetched once more, and not decoded.
    """
    dataset = config.datasets[sampler.name]
    names = [step.name for step in dataset.transform]
    decodes = names.index("decode_image") if "decode_image" in names else None
    files = sample
    if decodes is not None:
        before = dataset.model_copy(update={"transform": dataset.transform[:decodes]})
        datasets = {**config.datasets, sampler.name: before}
        other = Sampler(config.model_copy(update={"datasets": datasets}), sampler.name)
        files = other.take(sample.units, LOOKED_AT)
    found = [_files_of(record) for record in files.records]
    formats = tuple(sorted({_NAMES.get(s, s.upper()) for record in found for s, _ in record}))
    if not formats:
        return None
    if decodes is not None:
        shapes = {v.shape[:2] for r in sample.records for v in r.values.values() if _is_pixels(v)}
        if not shapes:
            return None
        pixels: float | None = _mean(sample)
    else:
        sizes = [[(image_size(body), len(body)) for _, body in record] for record in found]
        shapes = {size for record in sizes for size, _ in record}
        pixels = None
        if None not in shapes:
            pixels = _mean(files) + fmean(
                sum(size[0] * size[1] * _CHANNELS - length for size, length in record if size)
                for record in sizes
            )
    mean, images = _mean(files), None
    if dataset.source.format == "files" and files.outcome.records == files.read:
        count, total, whole = sampler.count(_PAGES)
        read = fmean(unit.size for unit in files.units)
        share = total / count / read  # all objects listed are of another size than the first
        mean *= share
        if pixels is not None and len(shapes) > 1:
            pixels *= share
        images = count if whole else None

    def held(size: float) -> int:
        shard = max(1, (config.cache.shard_size - _PER_SHARD) // size)
        number = (limit - METADATA_SLACK) / (size + _IN_SIDECAR + _PER_SHARD / shard)
        number = float(f"{max(0, number):.2g}")
        return int(number) if images is None else min(int(number), images)

    return Capacity(
        limit, images, formats, round(mean), held(mean),
        shapes.pop() if len(shapes) == 1 else None,
        None if pixels is None else round(pixels),
        None if pixels is None else held(pixels),
    )  # fmt: skip


def _mean(sample: Sample) -> float:
    return sample.outcome.data_bytes / sample.outcome.records


def _files_of(record: Record) -> list[tuple[str, bytes]]:
    values = (value for value in record.values.values() if isinstance(value, bytes))
    return [(suffix, value) for value in values if (suffix := image_suffix(value))]


def _is_pixels(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == 3 and value.dtype == np.uint8
