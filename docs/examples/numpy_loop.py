"""A training loop with no framework at all: python docs/examples/numpy_loop.py"""

from pathlib import Path

import numpy as np

from cachecd_client import connect

EPOCHS = 3
weights = np.zeros((32 * 32, 10), np.float32)


def pixels(batch):
    return batch["image"].reshape(len(batch["image"]), -1) / np.float32(255)


with connect(Path(__file__).with_name("digits.yaml")) as cache:
    for epoch in cache.epochs("train", EPOCHS):
        for batch in epoch.numpy(
            batch_size=32
        ):  # {"image": uint8 [32, 32, 32, 1], "label": int64 [32]}
            image, label = pixels(batch), batch["label"]
            found = np.exp(image @ weights)
            found /= found.sum(axis=1, keepdims=True)
            found[np.arange(len(label)), label] -= 1  # the gradient of the cross entropy
            weights -= 0.1 * (1 - epoch.progress) * image.T @ found / len(label)
        report = epoch.report()
        print(f"epoch {epoch.epoch}: {report['steps']} steps, {report['wait_share']:.0%} waited")

    with cache.acquire("eval") as held_out:
        hits = sum(
            int(((pixels(batch) @ weights).argmax(axis=1) == batch["label"]).sum())
            for batch in held_out.numpy(batch_size=64)
        )
    print(f"accuracy {hits / held_out.num_records:.1%} of {held_out.num_records}")
