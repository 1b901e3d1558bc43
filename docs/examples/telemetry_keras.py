"""Figures of the data in the logs of Keras: python docs/examples/telemetry_keras.py"""

import os
from pathlib import Path

import keras

from cachecd_client import connect

FIGURES = "wait_share", "queue_p10", "queue_p50", "set_records", "coverage", "reads_per_record"


class Telemetry(keras.callbacks.Callback):
    """Adds the figures to the logs, for `History` and the callbacks that come after it in the list."""

    def __init__(self, report):
        super().__init__()
        self.report = report

    def on_epoch_end(self, epoch, logs=None):
        report = self.report()
        logs.update({f"data_{n}": report[n] for n in FIGURES if report[n] is not None})


image = keras.Input((32, 32, 1), name="image", dtype="uint8")
pixels = keras.layers.Rescaling(1 / 255)(image)
scores = keras.layers.Dense(10, activation="softmax")(keras.layers.Flatten()(pixels))
model = keras.Model({"image": image}, scores)
model.compile("adam", "sparse_categorical_crossentropy")
log = keras.callbacks.CSVLogger(os.environ.get("LOG", "log.csv"), append=True)

with connect(Path(__file__).with_name("digits.yaml")) as cache:
    for epoch in cache.epochs("train", 3):
        loader = epoch.tf(32, label="label", features=["image"])
        history = model.fit(
            iter(loader),
            steps_per_epoch=len(loader),
            shuffle=False,
            verbose=0,
            callbacks=[Telemetry(epoch.report), log],
        ).history
        print({name: round(values[0], 3) for name, values in history.items()})
