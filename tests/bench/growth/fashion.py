"""Fashion-MNIST as the objects of a store."""

from __future__ import annotations

import gzip
import io
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SIDE, CLASSES = 28, 10
PACKAGE = "dataset-fashion-mnist"
INSTALLED = Path("/usr/share/datasets/fashion-mnist")
# What `label.pattern` finds the class by. Numbers come first, so that a listing mixes the classes.
LABEL_PATTERN = r"-([0-9])\.png$"


@dataclass(frozen=True)
class Pictures:
    """`train`: key -> PNG file, one object each. The test pictures are pixels, uint8 [n, 28, 28]."""

    name: str
    train: dict[str, bytes]
    test_pixels: NDArray[np.uint8]
    test_labels: NDArray[np.int64]

    @property
    def object_bytes(self) -> float:
        return sum(map(len, self.train.values())) / len(self.train)


def fashion_mnist(folder: Path) -> Pictures:
    """All 60,000 and 10,000, of the four files in `folder`."""
    pixels, test_pixels = (
        _idx(folder / f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, SIDE, SIDE)
        for part in ("train", "t10k")
    )
    labels, test_labels = (
        _idx(folder / f"{part}-labels-idx1-ubyte.gz", 8).astype(np.int64)
        for part in ("train", "t10k")
    )
    train = {
        f"{number:05}-{label}.png": _png(one)
        for number, (one, label) in enumerate(zip(pixels, labels, strict=True))
    }
    return Pictures("Fashion-MNIST", train, test_pixels, test_labels)


def located(named: Path | None, folder: Path) -> Path:
    """Where Fashion-MNIST's files are: in `named`, installed, or fetched from Debian into `folder`."""
    if named is not None or INSTALLED.exists():
        return named or INSTALLED
    try:
        subprocess.run(["apt-get", "download", PACKAGE], cwd=folder, check=True, timeout=300)
        (package,) = folder.glob(f"{PACKAGE}_*.deb")
        subprocess.run(["dpkg", "-x", package.name, "."], cwd=folder, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise SystemExit(
            f"no Fashion-MNIST ({error}): apt-get install {PACKAGE}, or name a directory with its four "
            "files by --fashion-mnist"
        ) from error
    return folder / INSTALLED.relative_to("/")


def _idx(path: Path, header: int) -> NDArray[np.uint8]:
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=header)


def _png(pixels: NDArray[np.uint8]) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png", compress_level=1)
    return file.getvalue()


def decoded(file: bytes) -> NDArray[np.uint8]:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(file)))
