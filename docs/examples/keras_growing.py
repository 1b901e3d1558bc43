"""Keras, one `fit` for the whole run, while the cache grows: python docs/examples/keras_growing.py"""

import logging
from pathlib import Path

import tensorflow as tf

from cachecd_client import connect

EPOCHS, STEPS = 6, 20  # of Keras: when it validates and saves; sets are changed where they end
logging.basicConfig(format="%(message)s")
logging.getLogger("cachecd").setLevel(logging.INFO)  # says which set is read

image = tf.keras.Input((32, 32, 1), name="image")
hidden = tf.keras.layers.Conv2D(16, 5, 4, activation="relu")(
    tf.keras.layers.Rescaling(1 / 255)(image)
)
logits = tf.keras.layers.Dense(10)(tf.keras.layers.Flatten()(hidden))
model = tf.keras.Model({"image": image}, logits)
loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
schedule = tf.keras.optimizers.schedules.CosineDecay(3e-3, EPOCHS * STEPS)
model.compile(tf.keras.optimizers.Adam(schedule), loss, metrics=["accuracy"])

with connect(Path(__file__).with_name("growing.yaml")) as cache, cache.acquire("eval") as held_out:
    history = model.fit(
        cache.tf_dataset("train", 32, label="label"),
        steps_per_epoch=STEPS,
        epochs=EPOCHS,
        validation_data=held_out.tf_dataset(64, label="label"),
        shuffle=False,  # it is
        verbose=2,
    )
    print(f"accuracy {history.history['val_accuracy'][-1]:.1%} of {held_out.num_records}")
