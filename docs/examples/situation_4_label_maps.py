"""Images with one-hot label maps in Keras: maps are cached as class numbers and expanded on reading.

    DATA=file:///data/street/ cachecd run situation_4_label_maps.yaml -- python situation_4_label_maps.py

A one-hot map of 8 classes is 32 times as large as its class numbers, and a PNG takes as long to decode
as a small model to train on: so the samplers decode, and the trainer expands what it is about to use.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np

SIDE, CLASSES = 512, 8


def side_by_side(record: dict[str, Any]) -> dict[str, Any]:
    """The transform: one PNG, [512, 1024, 3], picture and map beside each other -> the two apart.

    The map's red channel is the class.
    """
    from PIL import Image

    pixels = np.asarray(Image.open(io.BytesIO(record["payload"])))
    return {"image": pixels[:, :SIDE], "label_map": np.ascontiguousarray(pixels[:, SIDE:, 0])}


def expanded(batch: dict[str, Any]) -> tuple[Any, Any]:
    """As Keras takes it: images from 0 to 1, and one-hot maps."""
    import tensorflow as tf

    return tf.cast(batch["image"], tf.float32) / 255, tf.one_hot(batch["label_map"], CLASSES)


def model_of(filters: int) -> Any:
    """A network from images to maps, larger with more filters."""
    import keras

    image = keras.Input((SIDE, SIDE, 3))
    hidden = keras.layers.Conv2D(filters, 5, strides=4, padding="same", activation="relu")(image)
    hidden = keras.layers.Conv2D(filters, 3, padding="same", activation="relu")(hidden)
    classes = keras.layers.Conv2D(CLASSES, 1)(hidden)
    model = keras.Model(image, keras.layers.Softmax()(keras.layers.UpSampling2D(4)(classes)))
    model.compile("adam", "categorical_crossentropy")
    return model


def main() -> None:
    from cachecd_client import connect

    with connect() as cache:
        batches = cache.tf_dataset("train", 3).map(expanded, num_parallel_calls=2)
        model_of(8).fit(batches, steps_per_epoch=140, epochs=3, shuffle=False)


if __name__ == "__main__":
    main()
