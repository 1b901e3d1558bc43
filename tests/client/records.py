"""Records and shards whose content tells which they are."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from cachecd.sampler.encoding import encode, infer
from cachecd_client import _core
from cachecd_client.schema import Feature, Schema


def record(number: int) -> dict[str, Any]:
    """Record `number` of a set: every kind of feature there is, all telling the number."""
    return {
        "bits": np.array([0x3F80 + number % 7, 0xBF80], np.uint16),  # bfloat16
        "doubles": np.array([number / 3, 1e300][: number % 3]),
        "image": np.full((2, 3), number % 251, np.uint8),
        "key": f"key-{number}".encode() * (number % 3),
        "label": number,
        "many": [number] * (number % 4) if number % 4 else np.array([], np.int64),
        "names": [f"{number}", "x"],
        "vector": np.array([number, number + 0.5], np.float32),
    }


def schema() -> Schema:
    found = infer(record(1))
    others = {
        "bits": Feature("bits", "bytes", "bfloat16", (2,), raw=True),
        "doubles": Feature("doubles", "bytes", "float64", None, raw=True),
    }
    return Schema(tuple(others.get(f.name, f) for f in found.features))


def examples(numbers: range, described: Schema | None = None) -> list[bytes]:
    described = described or schema()
    return [encode(described, record(number)) for number in numbers]


def write(path: Path, records: list[bytes], described: Schema | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = _core.ShardWriter(str(path))
    for one in records:
        assert writer.append(one)
    writer.finish(json.dumps({"schema": (described or schema()).to_json()}))
    return path


def write_set(folder: Path, count: int, each: int) -> list[Path]:
    return [
        write(folder / f"{first}.tfrecord", examples(range(first, min(first + each, count))))
        for first in range(0, count, each)
    ]


def labels(batches: Iterable[dict[str, Any]]) -> list[int]:
    return [int(label) for batch in batches for label in batch["label"]]
