"""Writes MDS sets with MosaicML Streaming, reads them back with it, and keeps what it read as a pickle.

    python tests/readers/mosaic.py FOLDER

Runs in an environment of its own, because mosaicml-streaming needs an older NumPy than the tests.
"""

from __future__ import annotations

import pickle
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from streaming import MDSWriter, StreamingDataset

DTYPES = [f"{kind}{bits}" for kind in ("uint", "int") for bits in (8, 16, 32, 64)]
DTYPES += ["float16", "float32", "float64"]
COLUMNS = {
    **{
        name: name
        for name in ("bytes", "str", "int", "str_int", "str_float", "str_decimal", "json")
    },
    **{name: name for name in ("pil", "png", "jpeg", *DTYPES)},
    **{f"fixed {dtype}": f"ndarray:{dtype}:3,2" for dtype in DTYPES},
    **{f"shaped {dtype}": f"ndarray:{dtype}" for dtype in DTYPES},
    "any": "ndarray",
}
# Name -> how the writer is called.
SETS: dict[str, dict[str, Any]] = {
    "plain": {},
    "hashed": {"hashes": ["md5", "sha1", "sha3_512", "xxh128", "xxh64"]},
    "zstd": {"compression": "zstd", "hashes": ["blake2b", "xxh3_64"]},
    "zstd-19": {"compression": "zstd:19"},
    "gz": {"compression": "gz:6", "hashes": ["sha256"]},
    "bz2": {"compression": "bz2"},
    "br": {"compression": "br:4"},
    "snappy": {"compression": "snappy", "hashes": ["xxh32"]},
}


def sample(number: int) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    image = Image.fromarray(rng.integers(0, 256, (4, 5, 3), np.uint8))
    made: dict[str, Any] = {
        "bytes": rng.bytes(number % 40),
        "str": "ö" * (number % 7),
        "int": int(rng.integers(-(2**63), 2**63 - 1)),
        "str_int": int(rng.integers(-(2**63), 2**63 - 1)),
        "str_float": float(rng.normal()),
        "str_decimal": Decimal(f"{number}.10"),
        "json": {"number": number, "list": [1.5, None, "ä"]},
        **dict.fromkeys(("pil", "png", "jpeg"), image),
    }
    for dtype in DTYPES:
        values = np.frombuffer(rng.bytes(6 * np.dtype(dtype).itemsize), dtype).reshape(3, 2)
        made |= {dtype: values[0, 0], f"fixed {dtype}": values, f"shaped {dtype}": values}
    made["any"] = made[f"fixed {DTYPES[number % len(DTYPES)]}"][: number % 3 + 1]
    return made


def plain(value: Any) -> Any:
    """Returns the value without types that only this environment has."""
    return ("image", np.asarray(value)) if isinstance(value, Image.Image) else value


def main(folder: Path) -> None:
    for name, how in SETS.items():
        out = str(folder / name)
        with MDSWriter(out=out, columns=COLUMNS, size_limit=20_000, **how) as writer:
            for number in range(60):
                writer.write(sample(number))
        local = str(folder / f"{name} read")
        dataset = StreamingDataset(remote=out, local=local, shuffle=False, batch_size=1)
        read = [{k: plain(v) for k, v in dataset[n].items()} for n in range(60)]
        (folder / f"{name}.pickle").write_bytes(pickle.dumps(read))
    out = str(folder / "pickled")
    with MDSWriter(out=out, columns={"a": "pkl", "b": "int"}) as writer:
        writer.write({"a": {1, 2}, "b": 3})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
