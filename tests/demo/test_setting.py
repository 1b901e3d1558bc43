"""What the demo sets up before anything runs: images, a folder of them, a configuration."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections import Counter

import pytest
from PIL import Image

from cachecd import cli
from cachecd.config import load
from cachecd.daemon.rules import resolve
from cachecd.demo.configuration import configuration
from cachecd.demo.disk_watch import DiskWatch
from cachecd.demo.images import CLASSES, SIDE, images
from cachecd.sampler.formats.files import label_of


@pytest.fixture(scope="module")
def objects():
    return images()


def test_the_images_are_grey_pngs_of_all_digits_in_both_parts(objects):
    assert len(objects) == 1797
    parts = Counter(key.split("/")[0] for key in objects)
    assert parts == {"train": 1600, "test": 197}
    for part in parts:
        ends = {key.rpartition("-")[2] for key in objects if key.startswith(part)}
        assert len(ends) == CLASSES
    with Image.open(io.BytesIO(objects["train/0042-1.png"])) as image:
        assert (image.format, image.mode, image.size) == ("PNG", "L", (SIDE, SIDE))


@pytest.mark.parametrize("name", ["plain", """ ' " # ${HOME} $x {} : - é"""])
def test_the_configuration_is_one_wherever_the_directory_is(name, tmp_path):
    path = tmp_path / "demo.yaml"
    place = tmp_path / name
    path.write_text(configuration(place / "store", place / "cache"))
    config = load(path, {})
    assert config.cache.dir == place / "cache"
    train, test = config.datasets["train"], config.datasets["test"]
    assert train.source is not None
    assert train.source.url == f"file://{place}/store/train/"
    assert label_of(train.source, "0042-3.png") == "3"
    assert test.pin
    resolve(config)  # the limit suffices


def test_a_directory_is_measured_as_du_measures_it(tmp_path):
    (tmp_path / "some" / "folders").mkdir(parents=True)
    (tmp_path / "some" / "file").write_bytes(b"x" * 10_000)
    (tmp_path / "some" / "folders" / "file").write_bytes(b"x")
    os.link(tmp_path / "some" / "file", tmp_path / "again")
    with (tmp_path / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 30)
    said = subprocess.check_output(["du", "--block-size=1", "--summarize", tmp_path], text=True)
    with DiskWatch(tmp_path) as watch:
        while not watch.measurements:  # the runner's timeout is the deadline
            pass
    assert watch.most == watch.now() == int(said.split()[0])


def test_demo_without_its_packages_names_the_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert cli.run_command(["demo"]) == 2
    assert capsys.readouterr().err.endswith("pip install 'cachecd[demo]'\n")
