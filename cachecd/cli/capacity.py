"""Estimates how many records and images a limit holds, from a sample and the beginning of a listing."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from cachecd.cli.sample_view import image_suffix
from cachecd.cli.sampler import Sample, Sampler
from cachecd.cli.survey import image_header
from cachecd.config import Config
from cachecd.policy.fit import EMPTY_CACHE, describe_epoch, set_size
from cachecd.quantities import approximate_size

SAMPLED = 32  # records
_PAGES = 10  # pages of a listing whose units are counted
_IN_SIDECAR = 20  # bytes of a sidecar for each record
_PER_SHARD = 8 << 10  # bytes of a sidecar's text, and for rounding two files up to blocks


@dataclass(frozen=True, slots=True)
class Capacity:
    """`epoch`: a sentence with the number of records that the limit holds; "" if no record could be read.
    `images`: a sentence with the number of images that fit as image files and as pixels; "" if the sample
    has no images. `size`: bytes of all shards; None if only a part of the listing was read.
    """

    epoch: str = ""
    images: str = ""
    size: int | None = None


def capacity(config: Config, sampler: Sampler, sample: Sample, limit: int) -> Capacity:
    """`limit`: bytes that the dataset may use."""
    dataset, outcome = config.datasets[sampler.name], sample.outcome
    if not outcome.records:
        return Capacity()
    listed = number, total, whole = sampler.count(_PAGES)
    records, size = float(outcome.records), float(outcome.data_bytes)
    if sample.read and number:
        units = sum(unit.size for unit in sample.units[: sample.read])
        one_each = outcome.records == sample.read
        # Later units may have other sizes than the first units. The sizes of transformed records seldom
        # differ.
        by_number = not (total and units) or (one_each and bool(dataset.transform))
        scale = number / sample.read if by_number else total / units
        records, size = number if one_each else outcome.records * scale, size * scale
    whole = whole and sample.read > 0
    fitting = _fitting(config, size / records, limit)
    epoch = describe_epoch(limit, fitting, records if whole else None, dataset.evict.refresh)
    images = _images(config, sampler, sample, limit, listed)
    return Capacity("" if dataset.pin else epoch, images, set_size(int(size), 0) if whole else None)


def _fitting(config: Config, size: float, limit: int) -> float:
    """Returns how many records of `size` bytes fit into the limit."""
    shard = max(1, (config.cache.shard_size - _PER_SHARD) // size)
    room = limit - EMPTY_CACHE - config.cache.shard_size  # room for one shard stays free
    return max(0.0, room / (size + _IN_SIDECAR + _PER_SHARD / shard))


def _images(
    config: Config, sampler: Sampler, sample: Sample, limit: int, listed: tuple[int, int, bool]
) -> str:
    """If the transform decodes images, fetches the same units again without decoding them."""
    dataset, files = config.datasets[sampler.name], sample
    steps = [step.name for step in dataset.transform]
    if decodes := "decode_image" in steps:
        undecoded = Sampler(config, sampler.name, steps.index("decode_image"))
        files = undecoded.take(sample.units, SAMPLED)
    bodies = [v for v in _values(files) if isinstance(v, bytes) and image_suffix(v)]
    headers = [(body, header[0]) for body in bodies if (header := image_header(body))]
    shapes = [shape for _, shape in headers]
    if decodes:
        shapes = [v.shape[:2] for v in _values(sample) if isinstance(v, np.ndarray) and v.ndim == 3]
    if not headers or not shapes:
        return ""
    mean, pixels = (s.outcome.data_bytes / s.outcome.records for s in (files, sample))
    if not decodes:
        grown = sum(3 * height * width - len(body) for body, (height, width) in headers)
        pixels += grown / len(files.records)
    images = None
    single = dataset.source.format == "files" and files.outcome.records == files.read
    number, total, whole = listed
    if single and number:
        images = number if whole else None
        scale = total / number / fmean(unit.size for unit in files.units)
        mean *= scale
        pixels *= scale if len(set(shapes)) > 1 else 1

    def fitting(size: float) -> str:
        count = int(float(f"{_fitting(config, size, limit):.2g}"))
        return f"{count if images is None else min(count, images):,}"

    formats = sorted({image_suffix(body).upper().replace("JPG", "JPEG") for body, _ in headers})
    extent = "{} x {}".format(*shapes[0]) if len(set(shapes)) == 1 else "of several sizes"
    noun = "records" if dataset.source.join else "images"
    return (
        f"{approximate_size(limit)} hold about {fitting(mean)}"
        f"{'' if images is None else f' of {images:,}'} {noun} as {' and '.join(formats)}, "
        f"or {fitting(pixels)} as pixels ({extent})"
    )


def _values(sample: Sample) -> list[Any]:
    return [value for record in sample.records for value in record.values.values()]
