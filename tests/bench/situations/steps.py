"""What each step of an image's way costs, one at a time: for situation 4. TensorFlow uses what threads it
likes for one."""

from __future__ import annotations

import io
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def costs(png: Path, side: int, classes: int, repeats: int) -> dict[str, dict[str, float]]:
    """Step -> by what -> milliseconds, the median; of a PNG of picture and map side by side."""
    import tensorflow as tf

    data = png.read_bytes()
    pixels = np.asarray(Image.open(io.BytesIO(data)))
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "jpeg", quality=90)
    jpeg, labels = file.getvalue(), pixels[:, side:, 0]
    tensor, label_tensor = tf.constant(pixels), tf.constant(labels)
    eye = np.eye(classes, dtype=np.float32)
    of: dict[str, dict[str, Callable[[], Any]]] = {
        "read (page cache)": {
            "NumPy and PIL": png.read_bytes,
            "TensorFlow": lambda: tf.io.read_file(str(png)),
        },
        "decode PNG": {
            "NumPy and PIL": lambda: np.asarray(Image.open(io.BytesIO(data))),
            "TensorFlow": lambda: tf.io.decode_png(data),
        },
        "decode JPEG, quality 90": {
            "NumPy and PIL": lambda: np.asarray(Image.open(io.BytesIO(jpeg))),
            "TensorFlow": lambda: tf.io.decode_jpeg(jpeg),
        },
        "crop": {
            "NumPy and PIL": lambda: np.ascontiguousarray(pixels[:, :side]),
            "TensorFlow": lambda: tensor[:, :side],
        },
        "one-hot": {
            "NumPy and PIL": lambda: eye[labels],
            "TensorFlow": lambda: tf.one_hot(label_tensor, classes),
        },
        "copy": {"NumPy and PIL": lambda: pixels.copy(), "TensorFlow": lambda: tf.identity(pixels)},
    }
    return {
        step: {by: _milliseconds(call, repeats) for by, call in ways.items()}
        for step, ways in of.items()
    }


def _milliseconds(call: Callable[[], Any], repeats: int) -> float:
    call()
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        taken.append(1000 * (time.perf_counter() - began))
    return statistics.median(taken)
