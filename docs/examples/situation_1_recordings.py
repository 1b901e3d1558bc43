"""Sound files, a slow preparation, and an Estimator that calls its input_fn again and again.

    DATA=file:///data/wav/ cachecd run situation_1_recordings.yaml -- python situation_1_recordings.py

The samplers decode and prepare each file once; every call of `input_fn` then goes on with what is
cached by that time, and none of them starts over. (estimator_train_and_evaluate.py has it with a real
Estimator.)
"""

from __future__ import annotations

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


def main() -> None:
    import keras

    from cachecd_client import connect

    image = keras.Input((FRAMES, MELS, 3), name="spectrogram")
    hidden = keras.layers.Conv2D(8, 3, strides=4, activation="relu")(image)
    model = keras.Model(image, keras.layers.Dense(2)(keras.layers.Flatten()(hidden)))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with connect() as cache:
        input_fn = cache.input_fn("train", 16, label="label")
        for _ in range(5):  # as train_and_evaluate does
            model.fit(input_fn(), steps_per_epoch=50)


if __name__ == "__main__":
    main()
