"""Keras, one `fit` for each epoch: python docs/examples/keras_fit.py"""

from pathlib import Path

import tensorflow as tf

from cachecd_client import connect

EPOCHS = 3
image = tf.keras.Input((32, 32, 1), name="image")
hidden = tf.keras.layers.Conv2D(16, 5, 4, activation="relu")(
    tf.keras.layers.Rescaling(1 / 255)(image)
)
logits = tf.keras.layers.Dense(10)(tf.keras.layers.Flatten()(hidden))
model = tf.keras.Model({"image": image}, logits)
loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(tf.keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"], weighted_metrics=[])

with connect(Path(__file__).with_name("digits.yaml")) as cache, cache.acquire("eval") as held_out:
    validation = held_out.tf_dataset(64, label="label")  # each record once, the same every time
    for epoch in cache.epochs("train", EPOCHS):
        history = model.fit(
            epoch.tf_dataset(32, label="label"),
            validation_data=validation,
            initial_epoch=epoch.epoch,
            epochs=epoch.epoch + 1,
            shuffle=False,  # it is
            verbose=2,
        )
    accuracy = history.history["val_accuracy"][-1]
    print(f"accuracy {accuracy:.1%} of {held_out.num_records}")
