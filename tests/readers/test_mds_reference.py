"""MDS sets that MosaicML Streaming itself writes and reads back: each value is the same here."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import subprocess
import sys
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cachecd.config import SourceConfig
from cachecd.readers.mds import Shards
from cachecd.sampler.view import Direct
from cachecd.stores.fetch import open_store

REQUIRED = "mosaicml-streaming==0.13.0"
SETS = ["plain", "hashed", "zstd", "zstd-19", "gz", "bz2", "br", "snappy"]

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]  # downloads PyTorch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sets. CACHECD_MOSAIC: an interpreter that has mosaicml-streaming. Without it, an environment of
    6 GB is made, and removed."""
    made = tmp_path_factory.mktemp("mds")
    with tempfile.TemporaryDirectory() as environment:
        if not (python := os.environ.get("CACHECD_MOSAIC")):
            python = f"{environment}/bin/python"
            subprocess.run([sys.executable, "-m", "venv", environment], check=True)
            subprocess.run([python, "-m", "pip", "install", "-q", REQUIRED], check=True)
        script = Path(__file__).with_name("mosaic.py")
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        subprocess.run([python, script, made], check=True, env=environ)
    return made


@pytest.fixture
def view_of(folder):
    with contextlib.closing(Direct()) as direct:

        def view(name):
            source = SourceConfig(url=f"file://{folder}/{name}", format="files")
            return direct.view(open_store(source, 8))

        yield view


def is_same(ours: Any, theirs: Any) -> bool:
    match theirs:
        case ("image", pixels):
            if ours[:4] in (b"\x89PNG", b"\xff\xd8\xff\xe0"):
                return np.array_equal(np.asarray(Image.open(io.BytesIO(ours))), pixels)
            return bytes(ours).endswith(b"RGB" + pixels.tobytes())
        case np.ndarray() | np.generic():
            return ours.dtype == theirs.dtype and (ours.shape, ours.tobytes()) == (
                theirs.shape,
                theirs.tobytes(),
            )
        case str():
            return ours == theirs.encode()
        case Decimal():
            return Decimal(ours.decode()) == theirs
        case dict():
            return json.loads(ours) == theirs
    return type(ours) in (type(theirs), np.int64, np.float64) and ours == theirs


@pytest.mark.parametrize("name", SETS)
def test_each_value_is_the_one_that_streaming_reads(name, folder, view_of):
    view, reader = view_of(name), Shards()
    expected: list[dict[str, Any]] = pickle.loads((folder / f"{name}.pickle").read_bytes())
    units = [unit["name"] for unit in reader.units(view)]
    assert len(units) > 3
    records = [record for unit in units for record in reader.read(unit, view)]
    assert len(records) == len(expected)
    for ours, theirs in zip(records, expected, strict=True):
        assert ours.keys() == theirs.keys()
        assert [k for k in ours if not is_same(ours[k], theirs[k])] == []


def test_pickle_that_streaming_writes_is_refused_and_read_around(view_of):
    view = view_of("pickled")
    with pytest.raises(ValueError, match="encoding pkl"):
        list(Shards().units(view))
    reader = Shards(columns=["b"])
    [unit] = reader.units(view)
    assert list(reader.read(unit["name"], view)) == [{"b": 3}]
