"""Sound files, a slow preparation, and an Estimator that calls its input_fn again and again.

    DATA=file:///data/wav/ cachecd run situation_1_recordings.yaml -- python situation_1_recordings.py

The samplers decode and prepare each file once; every call of `input_fn` then goes on with what is
cached by that time, and none of them starts over.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

FRAMES, MELS = 400, 64
_HOP, _RATE = 160, 16_000


def spectrograms(record: dict[str, Any]) -> dict[str, Any]:
    """The transform: samples -> log power in 64 bands at three resolutions, float32 [400, 64, 3]."""
    samples = np.pad(record.pop("audio"), (0, 4096))
    layers = []
    for size in (1024, 2048, 4096):
        frames = np.lib.stride_tricks.sliding_window_view(samples, size)[::_HOP][:FRAMES]
        power = np.abs(np.fft.rfft(frames * np.hanning(size))) ** 2
        edges = np.geomspace(2, size // 2, MELS + 1).astype(int)
        layers.append(np.log(np.add.reduceat(power, edges[:-1], axis=1) + 1e-6))
    return {"label": record["label"], "spectrogram": np.stack(layers, axis=-1, dtype=np.float32)}


def input_fn_of(cache: Any, dataset: str, batch_size: int) -> Callable[[], Any]:
    """An `input_fn` for `dataset`: endless batches of (features, label), from the next epoch on."""
    import tensorflow as tf

    numbers = itertools.count()  # of epochs, over all calls: a later one sees what has grown

    def batches() -> Iterator[Any]:
        for number in numbers:
            with cache.acquire(dataset, number) as epoch:
                yield from epoch.tf(batch_size, label="label")

    spectrogram = tf.TensorSpec((batch_size, FRAMES, MELS, 3), tf.float32)
    label = tf.TensorSpec((batch_size,), tf.int64)

    def input_fn() -> Any:
        found = tf.data.Dataset.from_generator(
            batches, output_signature=({"spectrogram": spectrogram}, label)
        )
        return found.prefetch(2)

    return input_fn


def main() -> None:
    import keras

    from cachecd_client import connect

    image = keras.Input((FRAMES, MELS, 3), name="spectrogram")
    hidden = keras.layers.Conv2D(8, 3, strides=4, activation="relu")(image)
    model = keras.Model(image, keras.layers.Dense(2)(keras.layers.Flatten()(hidden)))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with connect() as cache:
        input_fn = input_fn_of(cache, "train", 16)
        for _ in range(5):  # as train_and_evaluate does
            model.fit(input_fn(), steps_per_epoch=50)


if __name__ == "__main__":
    main()
