"""TFRecord files as others write them: without sidecars, compressed, with what they forgot."""

from __future__ import annotations

import gzip
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cachecd_client import _core
from tests import zstandard
from tests.core.shards import frames

PACK = {None: bytes, "GZIP": gzip.compress, "ZLIB": zlib.compress, "ZSTD": zstandard.compress}


def numbers(first: int, count: int) -> list[bytes]:
    return [
        _core.encode_example({"label": number, "text": f"text of {number}"})
        for number in range(first, first + count)
    ]


def of_tensorflow(record: dict[str, Any]) -> Any:
    """The record as TensorFlow's message; of what kind an empty list is, an array says."""
    import tensorflow as tf

    features = {}
    for name, value in record.items():
        values = [value] if isinstance(value, (bytes, int, float)) else list(value)
        is_array = isinstance(value, np.ndarray)
        kind = value.dtype.kind if is_array else type([*values, b""][0]).__name__[0]
        match kind:
            case "i":
                features[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
            case "f":
                features[name] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
            case "b":
                features[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    return tf.train.Example(features=tf.train.Features(feature=features))


def put(path: Path, records: Sequence[bytes], compression: str | None = None) -> Path:
    """A TFRecord file and nothing else."""
    path.write_bytes(PACK[compression](frames(records)))
    return path


def python(script: str, *arguments: object, environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
