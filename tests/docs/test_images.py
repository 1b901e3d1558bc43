"""The programs of docs/images.md run over small images, and train."""

from __future__ import annotations

import re

import numpy as np
import pytest
from PIL import Image

from tests.docs.shown import ROOT, runner
from tests.frameworks import jnp, tf, torch

PAGE = "docs/images.md"
SMALLER = {"Image(224": "Image(28", "resize=256": "resize=32", "torch(256": "torch(4"}


def write(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8)).save(path)


@pytest.fixture
def bucket(tmp_path):
    folder = tmp_path / "bucket"
    for part, label, number in np.ndindex(2, 2, 4):
        name = folder / "imagenet" / ("train", "val")[part] / f"n{label}" / f"{number}.JPEG"
        write(name, np.full((40, 60, 3), 40 + 150 * label + number))
    colors = np.array([[0x80, 0x40, 0x80], [0x46, 0x82, 0xB4], [0, 0, 0]])
    for number in range(4):
        classes = np.random.default_rng(number).integers(0, 3, (6, 7)).repeat(90, 0).repeat(90, 1)
        write(folder / f"streets/images/{number}.jpg", colors[classes])
        write(folder / f"streets/masks/{number}.png", colors[classes])
    return folder


@pytest.fixture
def run(bucket, tmp_path, monkeypatch, capsys):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    run_shown = runner(tmp_path, monkeypatch)

    def run_program(configuration, program, changes):
        changes = {'"train", 90': '"train", 2', **changes}
        return run_shown(PAGE, configuration, program, changes), capsys.readouterr().out

    yield run_program
    torch.set_num_threads(threads)


def test_the_loop_for_imagenet_trains_and_evaluates_each_record(run):
    scope, printed = run(0, 0, SMALLER)
    assert re.findall(r"epoch (\d): [\d.]+% of (\d+)", printed) == [("0", "8"), ("1", "8")]
    assert scope["batch"]["image"].shape == (4, 3, 28, 28)
    assert scope["batch"].keys() == {"image", "label"}


def test_the_loop_for_segmentation_trains_on_masks_of_class_numbers(run):
    scope, _ = run(
        2, 1, {"Image(512": "Image(32", "torch(16": "torch(4"}
    )  # the same pairs as of the configuration before, but shrunk
    assert scope["batch"]["image"].shape == (4, 3, 32, 32)
    assert scope["batch"]["mask"].shape == (4, 32, 32)
    assert set(scope["batch"]["mask"].unique().tolist()) <= {0, 1, 2, 255}
    assert np.isfinite(scope["loss"].item())


LINES = dict(
    re.findall(r"^\| (\w+) \| `images = ([^`]+)`", (ROOT / "docs/images.md").read_text(), re.M)
)


@pytest.mark.parametrize(
    "name", ["PyTorch", "JAX", pytest.param("TensorFlow", marks=pytest.mark.long)]
)
def test_the_line_that_normalises_is_right_in_each_framework(name):
    pixels = np.random.default_rng(0).integers(0, 256, (2, 5, 6, 3), np.uint8)
    mean, std = np.float32([123.675, 116.28, 103.53]), np.float32([58.395, 57.12, 57.375])
    framework, make = {"PyTorch": (torch, "tensor"), "JAX": (jnp, "asarray")}.get(
        name, (tf, "constant")
    )
    make = getattr(framework, make)
    channels_first = name == "PyTorch"
    image = make(pixels.transpose(0, 3, 1, 2) if channels_first else pixels)
    scope = {"tf": tf, "batch": {"image": image}, "MEAN": make(mean), "STD": make(std)}
    result = np.asarray(eval(LINES[name], scope))
    result = result.transpose(0, 2, 3, 1) if channels_first else result
    assert result.dtype == np.float32
    assert np.allclose(result, (pixels - mean) / std, atol=1e-5)
