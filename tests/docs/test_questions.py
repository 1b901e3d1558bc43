"""The programs of the README, and of the pages on questions and migration."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from tests.docs.shown import blocks, runner
from tests.frameworks import torch


def encoded(pixels, form):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, form)
    return file.getvalue()


def defined(page, name):
    """The function of this name that the page shows."""
    (text,) = [text for text in blocks(page, "python") if f"def {name}(" in text]
    scope: dict = {}
    exec(compile(text, page, "exec"), scope)
    return scope[name]


def test_the_loop_of_the_readme_gets_images_with_channels_first(tmp_path, monkeypatch):
    for label in ("cat", "dog"):
        for number in range(4):
            path = tmp_path / "bucket" / "train" / label / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encoded(np.full((40, 60, 3), 40 * number, np.uint8), "JPEG"))
    loop = "with connect() as cache:"
    step = "shapes = []\ndef train_step(images, label):\n    shapes.append((images.shape, len(label)))\n"
    changes = {loop: step + loop, "torch(256": "torch(4", '"train", 90': '"train", 1', "224": "28"}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    scope = runner(tmp_path, monkeypatch)("README.md", 0, 0, changes)
    torch.set_num_threads(threads)
    assert scope["shapes"] == [((4, 3, 28, 28), 4)] * len(scope["shapes"])
    assert scope["shapes"]


def test_photo_becomes_a_jpeg_of_the_same_size():
    pixels = np.zeros((30, 20, 3), np.uint8)
    made = defined("docs/faq.md", "to_jpeg")({"payload": encoded(pixels, "PNG"), "label": 3})
    with Image.open(io.BytesIO(made["payload"])) as image:
        assert (image.format, image.size) == ("JPEG", (20, 30))
    assert made["label"] == 3


@pytest.mark.parametrize("shape", [(30, 20), (512, 512), (700, 20), (30, 600)])
def test_every_picture_becomes_512_pixels_square(shape):
    pad = defined("docs/faq.md", "pad_to_512")
    made = pad({"image": np.ones((*shape, 3), np.uint8)})
    height, width = made["size"]
    assert made["image"].shape == (512, 512, 3)
    assert made["image"].sum() == height * width * 3
    assert (height, width) == tuple(min(512, length) for length in shape)
