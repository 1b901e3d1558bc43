"""Each layout of docs/sources.md and docs/inputs.md as a folder: `init` writes what the owner expects,
`check` accepts it, and `sample` shows a record of it."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from dataclasses import dataclass, field
from typing import Any

import h5py
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import soundfile
import zarr
from PIL import Image

from cachecd import cli
from cachecd.config import load
from cachecd_client._core import ShardWriter, encode_example
from tests import zstandard

BYTES, NUMBER = ("bytes", []), ("int64", [])


def picture(form="PNG", mode="RGB"):
    file = io.BytesIO()
    Image.new(mode, (6, 4)).save(file, form)
    return file.getvalue()


def sound():
    file = io.BytesIO()
    soundfile.write(file, np.zeros(800, np.float32), 16_000, format="FLAC")
    return file.getvalue()


def npy(shape, dtype="float32"):
    file = io.BytesIO()
    np.save(file, np.zeros(shape, dtype))
    return file.getvalue()


def npz():
    file = io.BytesIO()
    np.savez(file, pixels=np.zeros((4, 6)), label=3)
    return file.getvalue()


def tar(**members):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for sample in range(3):
            for suffix, body in members.items():
                about = tarfile.TarInfo(f"{sample:04}.{suffix}")
                about.size = len(body)
                archive.addfile(about, io.BytesIO(body))
    return file.getvalue()


def tfrecord(tmp_path):
    path = tmp_path / "made.tfrecord"
    writer = ShardWriter(str(path))
    for number in range(3):
        writer.append(encode_example({"number": number}))
    writer.finish("{}")
    return path.read_bytes()


def parquet(**columns):
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), file)
    return file.getvalue()


def json_lines(number):
    rows = [{"id": n, "text": "ä" * n, "meta": {"score": n + number / 2}} for n in range(9)]
    rows[0]["url"] = "x"
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def hdf5(rows):
    file = io.BytesIO()
    with h5py.File(file, "w") as made:
        made.create_dataset("acquisition/data", data=np.zeros((rows, 2), np.int16))
        made.create_dataset("acquisition/rate", data=16_000)
    return file.getvalue()


def of_zarr(tmp_path, **arrays):
    """The files of a group film.zarr with these arrays."""
    for name, rows in arrays.items():
        data = np.ones((rows, 3), np.uint8)
        zarr.create_array(str(tmp_path / "film.zarr"), name=name, data=data, chunks=(16, 3))
    files = [path for path in (tmp_path / "film.zarr").rglob("*") if path.is_file()]
    return {str(path.relative_to(tmp_path)): path.read_bytes() for path in files}


@dataclass
class Layout:
    """`source`: what the proposal's source has beside the URL. `features`: of the first record, with their
    dtypes and shapes. `texts`: parts of the proposal. `unknown`: init says that it cannot tell what the
    files hold. `skipped`: objects that are no records."""

    objects: Any  # key -> bytes, or a function of a temporary directory
    source: dict[str, Any]
    features: dict[str, tuple[str, list[int] | None]]
    texts: tuple[str, ...] = ()
    unknown: bool = False
    options: list[str] = field(default_factory=list)
    skipped: tuple[str, ...] = ()


FILES = {"format": "files"}
PAYLOAD = {"key": BYTES, "payload": BYTES}
CLASSES = {"pattern": "^([^/]+)/"}
LAYOUTS = {
    "images": Layout(
        {f"{n}.jpg": picture("JPEG") for n in range(3)}, FILES, PAYLOAD, ('"payload": Image(4',)
    ),
    "folders of classes": Layout(
        {f"{c}/{n}.png": picture() for c in ("cat", "dog") for n in range(3)},
        FILES | {"label": CLASSES},
        PAYLOAD | {"label": NUMBER},
    ),
    "images with other files": Layout(
        {f"2026/{n}.jpg": picture("JPEG") for n in range(3)} | {"2026/a.png": picture(), "README.MD": b"x"},
        FILES | {"skip": ("*.MD",)},
        PAYLOAD,
    ),
    "images that loaders do not decode": Layout(
        {f"{n}.webp": picture("WEBP") for n in range(3)},
        FILES,
        {"key": BYTES, "image": ("uint8", [256, 256, 3])},
    ),
    "pairs in folders": Layout(
        {f"{kind}/berlin/{n}.png": picture() for kind in ("images", "masks") for n in range(3)},
        FILES | {"join": {"image": "images/*.png", "mask": "masks/*.png"}},
        {"key": BYTES, "image": BYTES, "mask": BYTES},
        ('"mask": Image(4, crop="random", flip=0.5, mode="L", resample="nearest")',),
    ),
    "pairs by the end of the name": Layout(
        {f"{n}{kind}.png": picture() for kind in ("", "_mask") for n in range(3)},
        FILES | {"join": {"mask": "*_mask.png", "image": "*.png"}},
        {"key": BYTES, "image": BYTES, "mask": BYTES},
        ('"mask": Image(4, crop="random", flip=0.5, mode="L", resample="nearest")',),
    ),
    "sound": Layout(
        {f"{n}.flac": sound() for n in range(3)}, FILES, PAYLOAD, ("# transform: [{decode_audio: ",)
    ),
    "a table of labels": Layout(
        {f"{n}.jpg": picture("JPEG") for n in range(3)}
        | {"labels.csv": b"key,label\n0.jpg,cat\n1.jpg,dog\n2.jpg,cat\n"},
        FILES | {"label": {"manifest": "URL/labels.csv"}, "skip": ("*.csv",)},
        PAYLOAD | {"label": NUMBER},
    ),
    "a table that names its columns otherwise": Layout(
        {f"{n}.jpg": picture("JPEG") for n in range(3)} | {"train.csv": b"id,breed\n0,pug\n"},
        FILES | {"skip": ("*.csv",)},
        PAYLOAD,
        ("# train.csv gives no labels: it has no columns key (or url) and label",),
    ),
    "webdataset": Layout(
        {f"{n}.tar": tar(jpg=picture("JPEG"), cls=b"7", json=b"{}") for n in range(2)},
        {"format": "webdataset"},
        {"__key__": BYTES, "jpg": BYTES, "cls": NUMBER, "json": BYTES},
        ("# members: cls, jpg, json", '"jpg": Image(4'),
    ),
    "tfrecord, compressed": Layout(
        lambda tmp_path: {"x.tfrecord.gz": gzip.compress(tfrecord(tmp_path))},
        {"format": "tfrecord"},
        {"number": NUMBER},
    ),
    "tfrecord, compressed with Zstandard": Layout(
        lambda tmp_path: {"x.tfrecord.zst": zstandard.compress(tfrecord(tmp_path))},
        {"format": "tfrecord"},
        {"number": NUMBER},
    ),
    "webdataset, compressed with Zstandard": Layout(
        {f"{n}.tar.zst": zstandard.compress(tar(jpg=picture("JPEG"), cls=b"7")) for n in range(2)},
        {"format": "webdataset"},
        {"__key__": BYTES, "jpg": BYTES, "cls": NUMBER},
        ("# members: cls, jpg", '"jpg": Image(4'),
    ),
    "a compressed table of labels": Layout(
        {f"{n}.jpg": picture("JPEG") for n in range(3)}
        | {"labels.csv.zst": zstandard.compress(b"key,label\n0.jpg,cat\n1.jpg,dog\n2.jpg,cat\n")},
        FILES | {"label": {"manifest": "URL/labels.csv.zst"}, "skip": ("*.zst",)},
        PAYLOAD | {"label": NUMBER},
    ),
    "JSON lines": Layout(
        {f"{n}.jsonl": json_lines(n) for n in range(2)} | {"readme.md": b"x"},
        {"format": "jsonl", "features": {"url": {"dtype": "bytes", "optional": True}}},
        {"id": NUMBER, "text": BYTES, "meta.score": ("float64", []), "url": BYTES},
        ('# columns: ["text"]  # read only some of: id, meta.score, text, url', "cachecd[text]"),
        skipped=("readme.md",),
    ),
    "JSON lines, compressed": Layout(
        {"0.json.gz": gzip.compress(json_lines(0)), "1.json.gz": gzip.compress(json_lines(1))},
        {"format": "jsonl", "features": {"url": {"dtype": "bytes", "optional": True}}},
        {"id": NUMBER, "text": BYTES, "meta.score": ("float64", []), "url": BYTES},
    ),
    "JSON lines, compressed with Zstandard": Layout(
        {f"{n}.jsonl.zst": zstandard.compress(json_lines(n)) for n in range(2)},
        {"format": "jsonl", "features": {"url": {"dtype": "bytes", "optional": True}}},
        {"id": NUMBER, "text": BYTES, "meta.score": ("float64", []), "url": BYTES},
    ),
    "JSON documents": Layout(
        {f"{n}.json": b'{"a": 1}' for n in range(2)}, FILES, PAYLOAD, ("cannot tell",), True
    ),
    "images in parquet": Layout(
        {"0.parquet": parquet(image=[{"bytes": picture(), "path": "a"}], label=[3])},
        {"format": "parquet"},
        {"image": BYTES, "label": NUMBER},
    ),
    "tokens in .npy": Layout(
        {"tokens.npy": npy(5000, "uint16")},
        {"format": "npy", "array": {"window": 1024}},
        {"key": BYTES, "start": NUMBER, "array": ("uint16", [1024])},
    ),
    "a set in one .npy": Layout(
        {"images.npy": npy((50, 6, 4, 3), "uint8"), "readme.txt": b"x"},
        {"format": "npy", "array": {"window": 1, "match": "*.npy"}},
        {"key": BYTES, "start": NUMBER, "array": ("uint8", [1, 6, 4, 3])},
    ),
    "arrays that belong together": Layout(
        {f"{n}.audio.npy": npy(3200 + 160 * n) for n in range(3)}
        | {f"{n}.labels.npy": npy(20 + n, "int64") for n in range(3)},
        {"format": "npy", "array": {"window": 3200, "arrays": {"audio": {"match": "*.audio.npy"},
                                                               "labels": {"match": "*.labels.npy"}}}},
        {"key": BYTES, "start": NUMBER, "audio": ("float32", [3200]), "labels": ("int64", [20])},
    ),
    "raw numbers, their format given": Layout(
        {"train.bin": bytes(40_000)},
        {"format": "npy", "array": {"window": 1024, "dtype": "float32"}},
        {"key": BYTES, "start": NUMBER, "array": ("float32", [1024])},
        ("dtype: float32  # a guess: please correct it",),
        options=["--format", "npy"],
    ),
    "rows of CSV": Layout(
        {"train.csv": b"age,name\n1,a\n"}, FILES, PAYLOAD, ("Convert rows of CSV",), True
    ),
    "HDF5": Layout(
        {"a.h5": hdf5(64), "b.h5": hdf5(80)},
        {"format": "python", "reader": "cachecd.readers.hdf5:Windows",
         "options": {"window": 64, "path": "acquisition/data"}},
        {"key": BYTES, "start": NUMBER, "array": ("int16", [64, 2])},
        ("pip install 'cachecd[hdf5]'",),
    ),
    "zarr": Layout(
        lambda tmp_path: of_zarr(tmp_path, pixels=64, labels=64, means=4),
        {"format": "python", "reader": "cachecd.readers.zarr:Windows",
         "options": {"window": 1, "path": {"pixels": "pixels", "labels": "labels"}}},
        {"key": BYTES, "start": NUMBER, "pixels": ("uint8", [1, 3]), "labels": ("uint8", [1, 3])},
    ),
}  # fmt: skip


def listed(proposal: str, url: str, of: dict[str, Any]) -> dict[str, Any]:
    """The proposal's source with these keys alone, as far as they are set."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items() if v not in (None, (), {}, False, "")}
        return value.replace(url, "URL") if isinstance(value, str) else value

    source = plain(load(proposal, {}).datasets["train"].source.model_dump())
    assert source.pop("url") == "URL"
    return source


def run(capsys: Any, *command: Any) -> tuple[str, str]:
    code = cli.run_command([str(word) for word in command])
    output = capsys.readouterr()
    assert code == 0, output.err
    return output.out, output.err


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_proposed_accepted_and_shown(name, tmp_path, capsys):
    layout = LAYOUTS[name]
    objects = layout.objects(tmp_path) if callable(layout.objects) else layout.objects
    url = f"file://{tmp_path}/src"
    for key, body in objects.items():
        path = tmp_path / "src" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body.replace(b"URL", url.encode()))
    file = tmp_path / "c.yaml"
    cache = tmp_path / "cache"
    _, said = run(capsys, "init", url, "--cache", cache, "-o", file, *layout.options)
    assert ("cannot tell" in said) == layout.unknown
    assert len(said.splitlines()) == 1 + layout.unknown
    assert listed(file, url, layout.source) == layout.source
    assert [text for text in layout.texts if text not in file.read_text()] == []
    run(capsys, "check", file)
    shown = json.loads(run(capsys, "sample", file, "--json", "--out", tmp_path / "images")[0])
    features = shown["records"][0]["features"]
    assert {f: (v["dtype"], v["shape"]) for f, v in features.items()} == layout.features
    told = json.loads(run(capsys, "check", file, "--sources", "--json")[0])
    skipped = told["resolved"]["datasets"]["train"]["sample"]["skipped"]
    assert tuple(each["key"] for each in skipped) == layout.skipped
    assert not cache.exists()


def packed(name, tmp_path, number):
    """An object whose records lack a feature or have a longer list if the number is 17."""
    record = {"id": number, "box": np.zeros(4 if number != 17 else 8, np.float32)}
    record |= {"caption": b"text"} if number != 17 else {}
    if name == "webdataset":
        return f"{number:02}.tar", tar(
            cls=b"7", jpg=picture("JPEG"), **{"txt": b"x"} if number != 17 else {}
        )
    writer = ShardWriter(str(tmp_path / f"{number}.made"))
    writer.append(encode_example(record))
    writer.finish("{}")
    return f"{number:02}.tfrecord", (tmp_path / f"{number}.made").read_bytes()


@pytest.mark.parametrize(
    ("name", "features"),
    [
        (
            "tfrecord",
            {
                "box": {"dtype": "float32", "shape": (None,)},
                "caption": {"dtype": "bytes", "optional": True},
            },
        ),
        ("webdataset", {"txt": {"dtype": "bytes", "optional": True}}),
    ],
)
def test_init_declares_the_features_that_vary_over_the_listing(name, features, tmp_path, capsys):
    url, file = f"file://{tmp_path}/src", tmp_path / "c.yaml"
    (tmp_path / "src").mkdir()
    for number in range(20):
        key, body = packed(name, tmp_path, number)
        (tmp_path / "src" / key).write_bytes(body)
    run(capsys, "init", url, "--cache", tmp_path / "cache", "-o", file)
    assert listed(file, url, {}) == {"format": name, "features": features}
    run(capsys, "check", file)


def test_a_sample_that_the_look_cuts_off_declares_nothing(tmp_path, capsys):
    url, file = f"file://{tmp_path}/src", tmp_path / "c.yaml"
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.tar").write_bytes(tar(cls=b"7", bin=bytes(100_000), txt=b"x"))
    run(capsys, "init", url, "--cache", tmp_path / "cache", "-o", file)
    assert listed(file, url, {}) == {"format": "webdataset"}
