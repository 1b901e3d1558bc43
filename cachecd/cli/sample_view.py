"""Shows a sample: each feature's name, dtype, shape and range; writes images to files.

Text from a source is printed on one line without control characters. No file name contains such text.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachecd.cli.sampler import Record, Sample
from cachecd.cli.survey import image_header
from cachecd.model import in_order
from cachecd.quantities import approximate_size, printable
from cachecd.stores.extras import extra
from cachecd_client._core import decode_image, image_formats
from cachecd_client.errors import SchemaError
from cachecd_client.loader.image import Image
from cachecd_client.schema import Feature, Schema

_FIRST_BYTES = 32
_SIDE = 224  # pixels of a decoded picture, as most models take them
_SKIPPED = 5
_MAGIC = {
    b"\xff\xd8\xff": "jpg",
    b"\x89PNG\r\n\x1a\n": "png",
    b"GIF8": "gif",
    b"BM": "bmp",
    b"II*\0": "tif",
    b"MM\0*": "tif",
}


def document(sample: Sample, images: Mapping[tuple[int, str], Path]) -> dict[str, Any]:
    """Returns the sample as plain JSON values. Bytes become their length and their first bytes in
    hexadecimal."""
    files = {place: {"file": str(path)} for place, path in images.items()}
    return {
        "units": [
            {"key": unit.key, "begin": unit.begin, "size": unit.size, "etag": unit.etag}
            for unit in sample.units
        ],
        "schema": sample.schema.to_json() if sample.schema else None,
        "records": [
            {
                "key": record.unit.key,
                "ordinal": record.ordinal,
                "features": {
                    name: values | files.get((number, name), {})
                    for name, values in _features(sample, record).items()
                },
            }
            for number, record in enumerate(sample.records)
        ],
        "num_records": sample.outcome.records,
        "data_bytes": sample.outcome.data_bytes,
        "fetched_bytes": sample.outcome.fetched_bytes,
        "seconds": round(sample.outcome.seconds, 3),
        "stages": {name: asdict(each) for name, each in in_order(sample.stages).items()},
        "decode_ms": {name: round(ms, 3) for name, (ms, _) in sample.decoding.items()},
        "whole": sample.is_whole,
        "skipped": [{"key": each.key, "reason": each.reason} for each in sample.outcome.skipped],
        "skipped_records": [asdict(each) for each in sample.outcome.passed],
    }


def lines(sample: Sample, images: Mapping[tuple[int, str], Path]) -> Iterator[tuple[str, str]]:
    """Yields the sample as the rows of a table with two columns."""
    for number, record in enumerate(sample.records):
        head = f"record {number}"
        for name, values in _features(sample, record).items():
            file = images.get((number, name))
            written = f"  -> {file}" if file else ""
            yield head, f"{printable(name)}: {_text(values)}{written}"
            head = ""
    if (more := sample.outcome.records - len(sample.records)) > 0:
        yield "", f"and {more} more {'record' if more == 1 else 'records'}"
    if not sample.is_whole:
        yield "", "the shard was full before the unit ended"
    for group in sample.outcome.passed:
        count = f"{group.records} {'record' if group.records == 1 else 'records'}"
        yield "skipped", f"{count}, {printable(group.examples[0])}: {printable(group.reason)}"
    for skipped in sample.outcome.skipped[:_SKIPPED]:
        yield "skipped", f"{printable(skipped.key)}: {printable(skipped.reason)}"
    if len(sample.outcome.skipped) > _SKIPPED:
        yield "", f"and {len(sample.outcome.skipped) - _SKIPPED} more units"


def costs(sample: Sample) -> Iterator[tuple[str, str]]:
    """Yields the time that each stage takes for a record, as the rows of a table with two columns."""
    head = "time"
    for stage, seconds in in_order(sample.stages).items():
        if count := seconds.records or sample.outcome.records:
            wall, cpu = (1000 * each / count for each in (seconds.wall_s, seconds.cpu_s))
            waits = " (waiting)" if stage == "fetch" else ""
            yield head, f"{printable(stage)}: {wall:.3f} ms a record{waits}, {cpu:.3f} ms of CPU"
            head = ""
    for name, (milliseconds, count) in sample.decoding.items():
        pictures = "1 picture" if count == 1 else f"{count} pictures"
        yield (
            head,
            f"decode={{{printable(name)!r}: Image({_SIDE})}} in the trainer: {milliseconds:.3f} ms a "
            f"record on one core ({pictures}; not measured: other sizes and crops, assembling batches)",
        )
        head = ""


def measure_decoding(sample: Sample) -> None:
    """Measures the trainer's `decode` of each feature that holds files which the core can decode. Sets
    `sample.decoding`: by feature, the milliseconds for a picture, and the number of pictures."""
    known = {"jpeg": "jpg", "png": "png"}
    suffixes = {known[each] for each in image_formats() if each in known}
    options = Image(_SIDE).for_reader()
    for name in sorted({name for record in sample.records for name in record.values}):
        values = (record.values.get(name) for record in sample.records)
        bodies = [v for v in values if isinstance(v, bytes) and image_suffix(v) in suffixes]
        try:
            for body in bodies[:1]:
                decode_image(body, options)  # the first call also loads the decoder's tables
            began = time.thread_time()
            for body in bodies:
                decode_image(body, options)
        except (ValueError, SchemaError):
            continue  # a damaged picture: the trainer's loader reports it
        if bodies:
            milliseconds = 1000 * (time.thread_time() - began) / len(bodies)
            sample.decoding[name] = milliseconds, len(bodies)


def write_images(sample: Sample, folder: Path) -> dict[tuple[int, str], Path]:
    """Writes every image (uint8 [height, width, 1 or 3], or the bytes of an image file) into the folder.
    Returns the files by record and feature. FileExistsError: a file exists already."""
    written: dict[tuple[int, str], Path] = {}
    for number, record in enumerate(sample.records):
        for place, (name, value) in enumerate(record.values.items()):
            suffix = image_suffix(value)
            if not suffix:
                continue
            path = folder / f"record-{number}-feature-{place}.{suffix}"
            with path.open("xb") as file:
                if isinstance(value, bytes):
                    file.write(value)
                else:
                    _write_png(value, file)
            written[number, name] = path
    return written


def has_images(sample: Sample) -> bool:
    """Whether the sample has an image."""
    return any(image_suffix(v) for r in sample.records for v in r.values.values())


def image_suffix(value: Any) -> str:
    """Returns the file suffix for an image value, or "" for any other value."""
    if isinstance(value, bytes):
        if value[:4] == b"RIFF" and value[8:12] == b"WEBP":
            return "webp"
        return next((suffix for magic, suffix in _MAGIC.items() if value.startswith(magic)), "")
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or not value.size:
        return ""
    return "png" if value.ndim == 3 and value.shape[2] in (1, 3) else ""


def _write_png(pixels: NDArray[Any], file: Any) -> None:
    with extra("images", "images of arrays"):
        from PIL import Image

    if pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "PNG")


def _features(sample: Sample, record: Record) -> dict[str, dict[str, Any]]:
    schema = sample.schema or Schema(())
    return {
        feature.name: _described(feature, record.values.get(feature.name), sample)
        for feature in schema.features
    }


def _described(feature: Feature, value: Any, sample: Sample) -> dict[str, Any]:
    shape = None if feature.shape is None else list(feature.shape)
    values: dict[str, Any] = {"dtype": feature.dtype, "shape": shape}
    if feature.unit:
        values["unit"] = feature.unit
    if feature.optional:
        values["optional"] = True
    if value is None:
        values["missing"] = True
    elif isinstance(value, bytes):
        values |= {"length": len(value), "first": value[:_FIRST_BYTES].hex()}
        if header := image_suffix(value) and image_header(value):
            image = "a {} file of {} x {} pixels".format(image_suffix(value), *header[0])
            values["image"] = image
    elif isinstance(value, list):
        first = value[0] if value else b""
        values |= {"values": len(value), "first": first[:_FIRST_BYTES].hex()}
    else:
        if feature.shape is None:
            values["values"] = len(value)
        if value.size and feature.dtype != "bfloat16":
            values |= _extent(value)
        if feature.name == "label" and value.shape == () and 0 <= value < len(feature.classes):
            values |= {"class": feature.classes[int(value)], "numbered": sample.numbered}
    return values


def _extent(value: NDArray[Any]) -> dict[str, Any]:
    if value.size == 1:
        return {"value": _plain(value.reshape(())[()])}
    with np.errstate(all="ignore"):
        mean = _plain(value.mean(dtype=np.float64))
    return {"min": _plain(value.min()), "max": _plain(value.max()), "mean": mean}


def _plain(number: Any) -> Any:
    """Returns the value for JSON, which has no NaN."""
    value = number.item()
    return value if not isinstance(value, float) or np.isfinite(value) else str(value)


def _text(values: Mapping[str, Any]) -> str:
    shape = values["shape"]
    dims = "[ragged]" if shape is None else str(shape) if shape else ""
    text = f"{values['dtype']} {dims}".rstrip()
    text += "".join(f", {word}" for word in ("optional", "missing") if word in values)
    if "values" in values:
        text += f", {values['values']} values"
    if "length" in values:
        text += f", {approximate_size(values['length'])}"
    if "image" in values:
        text += f": {values['image']}"
    elif "first" in values:
        text += f": {bytes.fromhex(values['first'])!r}"
    if "class" in values:
        name = printable(values["class"])
        if not values["numbered"]:
            return f"{text}: class {name!r} (numbered when the listing ends)"
        return f"{text}: {values['value']}, class {name!r}"
    if "value" in values:
        return f"{text}: {values['value']}"
    if "min" in values:
        mean = values["mean"]
        mean = f"{mean:.6g}" if isinstance(mean, float) else mean
        return f"{text}: {values['min']} to {values['max']}, mean {mean}"
    return text
