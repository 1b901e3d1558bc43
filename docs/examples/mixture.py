"""Two datasets mixed as they are read, one of them more and more: python docs/examples/mixture.py"""

from pathlib import Path

import numpy as np

from cachecd_client import connect

weights = np.zeros((1024, 10), np.float32)  # of a softmax over the pixels


def chances(image):
    scores = (image.reshape(len(image), -1).astype(np.float32) / 255) @ weights
    scores = np.exp(scores - scores.max(1, keepdims=True))
    return scores / scores.sum(1, keepdims=True)


def curriculum(progress):
    """Of the run, 0..1: clean digits first, and noisy ones in their place as it goes on."""
    return {"clean": 1 - 0.9 * progress, "noisy": 0.1 + 0.9 * progress}


with connect(Path(__file__).with_name("mixture.yaml")) as cache:
    for epoch in cache.epochs(curriculum, 4, steps_per_epoch=40):
        losses = {name: [] for name in epoch.weights}
        for batch in epoch.numpy(batch_size=32, ids=True):
            found = chances(batch["image"])
            loss = -np.log(found[np.arange(32), batch["label"]] + 1e-9)
            for place, name in enumerate(epoch.weights):
                losses[name] += loss[batch["_dataset"] == place].tolist()
            found[np.arange(32), batch["label"]] -= 1
            pixels = batch["image"].reshape(32, -1).astype(np.float32) / 255
            weights -= 0.01 * pixels.T @ found
        told = [f"{len(of)} {name}, loss {np.mean(of):.2f}" for name, of in losses.items()]
        print(f"epoch {epoch.epoch}: {'; '.join(told)}")

    with cache.acquire("eval") as held_out:
        (batch,) = held_out.numpy(batch_size=held_out.num_records)
        right = chances(batch["image"]).argmax(1) == batch["label"]
    print(f"accuracy {right.mean():.1%} of {len(right)} noisy digits")
