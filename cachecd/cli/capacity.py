"""How many of a dataset's images a limit holds: as image files, and as pixels."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import numpy as np

from cachecd.config import Config
from cachecd.preflight import minimum
from cachecd.quantities import approximate_size
from cachecd.cli.sampler import Sample, Sampler
from cachecd.cli.sample_view import image_suffix
from cachecd.cli.survey import image_header

LOOKED_AT = 32  # records
_PAGES = 10  # of a listing, to count the images
_IN_SIDECAR = 20  # bytes of a record
_PER_SHARD = 8 << 10  # bytes of a sidecar's text, and the rounding of two files to blocks


def capacity(config: Config, sampler: Sampler, sample: Sample, limit: int) -> str:
    """Says how many images `limit` bytes hold, as image files and as pixels; "" if the sample has none.

    Where the transform decodes images, the same units are fetched once more and not decoded.
    """
    dataset, files = config.datasets[sampler.name], sample
    steps = [step.name for step in dataset.transform]
    if decodes := "decode_image" in steps:
        undecoded = Sampler(config, sampler.name, steps.index("decode_image"))
        files = undecoded.take(sample.units, LOOKED_AT)
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
    number, total, whole = sampler.count(_PAGES) if single else (0, 0, False)
    if number:
        images = number if whole else None
        # The objects listed may be of another size than the first.
        share = total / number / fmean(unit.size for unit in files.units)
        mean *= share
        pixels *= share if len(set(shapes)) > 1 else 1

    def held(size: float) -> str:
        shard = max(1, (config.cache.shard_size - _PER_SHARD) // size)
        number = (limit - minimum((), 0)) / (size + _IN_SIDECAR + _PER_SHARD / shard)
        number = int(float(f"{max(0, number):.2g}"))
        return f"{number if images is None else min(number, images):,}"

    formats = sorted({image_suffix(body).upper().replace("JPG", "JPEG") for body, _ in headers})
    extent = "{} x {}".format(*shapes[0]) if len(set(shapes)) == 1 else "of several sizes"
    noun = "records" if dataset.source.join else "images"
    return (
        f"{approximate_size(limit)} hold about {held(mean)}{'' if images is None else f' of {images:,}'} "
        f"{noun} as {' and '.join(formats)}, or {held(pixels)} as pixels ({extent})"
    )


def _values(sample: Sample) -> list[Any]:
    return [value for record in sample.records for value in record.values.values()]
