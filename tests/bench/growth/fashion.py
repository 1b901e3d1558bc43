"""Fashion-MNIST: 60,000 training pictures in 10 classes of clothes, and 10,000 test pictures."""

from __future__ import annotations

import gzip
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SIDE, CLASSES = 28, 10
TRAIN = 60_000  # pictures
PACKAGE = "dataset-fashion-mnist"
INSTALLED = Path("/usr/share/datasets/fashion-mnist")


@dataclass(frozen=True)
class Pictures:
    """60,000 training and 10,000 test pictures: pixels uint8 [n, 28, 28], labels int64 [n]."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]
    test_pixels: NDArray[np.uint8]
    test_labels: NDArray[np.int64]


def fashion_mnist(folder: Path) -> Pictures:
    """All pictures, from the four files in `folder`."""
    pixels, test_pixels = (
        _idx(folder / f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, SIDE, SIDE)
        for part in ("train", "t10k")
    )
    labels, test_labels = (
        _idx(folder / f"{part}-labels-idx1-ubyte.gz", 8).astype(np.int64)
        for part in ("train", "t10k")
    )
    return Pictures(pixels, labels, test_pixels, test_labels)


def located(named: Path | None, folder: Path) -> Path:
    """The directory of the four files: `named`, installed, or fetched from Debian into `folder`."""
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
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=header).copy()
