"""A slow step moved out of the input path by one line of YAML, with stored variants for augmentation.

    DATA=file:///data/photos/ cachecd run situation_5_moved_out.yaml -- python situation_5_moved_out.py

In the input path `augmented` would run again in every epoch. As the transform it runs once, makes four
variants of each picture, and the trainer, whose order is shuffled anew each epoch, meets them as it
would chance.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

SIDE, VARIANTS = 192, 4


def augmented(file: bytes, chance: np.random.Generator) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A picture turned, cropped and denoised at random; uint8 [192, 192, 3]. It takes its time."""
    from PIL import Image, ImageFilter

    image = Image.open(io.BytesIO(file)).convert("RGB")
    image = image.rotate(chance.uniform(-20, 20), Image.Resampling.BICUBIC)
    left, top = chance.integers(0, 32, 2)
    image = image.crop((left, top, image.width - 32 + left, image.height - 32 + top))
    image = image.filter(ImageFilter.MedianFilter(7))
    return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.LANCZOS))


def variants(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The transform: a file -> so many pictures, the same on every machine: chance is the key's."""
    chance = np.random.default_rng(zlib.crc32(record["key"]))
    for _ in range(VARIANTS):
        yield {"image": augmented(record["payload"], chance)}


def main() -> None:
    from cachecd_client import connect

    with connect() as cache:
        for epoch in cache.epochs("train", 3):
            for batch in epoch.torch(batch_size=32):
                batch["image"].float().mean()  # the training step


if __name__ == "__main__":
    main()
