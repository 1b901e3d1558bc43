"""`cachecd init`: a look at a few objects gives a configuration that loads, with comments that say why."""

from __future__ import annotations

import io
import json
import re
import tarfile

import numpy as np
import pytest
from PIL import Image as Picture

from cachecd import cli
from cachecd.cli import proposal
from cachecd.cli.sampler import Sampler
from cachecd.cli.survey import Survey, _find_join, survey
from cachecd.config import DatasetConfig, SourceConfig, SplitConfig, load
from cachecd.errors import ConfigError, DiskError
from cachecd.model import ObjectInfo
from cachecd.sampler.encoding import encode
from cachecd.stores.fetch import open_store
from cachecd.units.selection import selection_of
from cachecd_client import FileSet, Image
from cachecd_client._core import ShardWriter, encode_example


def image(height=4, width=5, form="PNG", mode="RGB"):
    file = io.BytesIO()
    Picture.new(mode, (width, height)).save(file, form)
    return file.getvalue()


def npy(rows, columns=3, dtype=np.float32):
    file = io.BytesIO()
    np.save(file, np.zeros((rows, columns) if columns else rows, dtype))
    return file.getvalue()


def tar(image=b"abc", suffix="jpg"):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, body in {f"1.{suffix}": image, "1.cls": b"3"}.items():
            member = tarfile.TarInfo(name)
            member.size = len(body)
            archive.addfile(member, io.BytesIO(body))
    return file.getvalue()


@pytest.fixture
def tfrecord(tmp_path):
    path = tmp_path / "made.tfrecord"
    writer = ShardWriter(str(path))
    writer.append(encode_example({"a": 1}))
    writer.finish("{}")
    return path.read_bytes()


@pytest.fixture
def put(tmp_path):
    def make(objects):
        for key, body in objects.items():
            path = tmp_path / "src" / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)
        return f"file://{tmp_path}/src"

    return make


def seen(url):
    return survey(open_store(SourceConfig(url=url, format="files"), 2), url)


def proposed(url, tmp_path, capsys, *options):
    path = tmp_path / "proposed.yaml"
    path.unlink(missing_ok=True)
    asked = ["init", url, "--cache", str(tmp_path / "cache"), "-o", str(path), *options]
    assert cli.run_command(asked) == 0, capsys.readouterr().err
    assert cli.run_command(["check", str(path)]) == 0, capsys.readouterr().err
    assert not (tmp_path / "cache").exists()
    return load(path, {}).datasets["train"], path.read_text()


@pytest.mark.parametrize(
    "layout", [{"a.jpg": "JPEG", "b.jpg": "JPEG"}, {"a.tar": "JPEG"},
               {f"{kind}/{n}.png": "PNG" for kind in ("images", "masks") for n in range(2)},
               {f"{n}{end}.png": "PNG" for end in ("", "_mask") for n in range(2)}],
)  # fmt: skip
def test_the_line_printed_reads_the_records_of_the_proposal(put, tmp_path, capsys, layout):
    whole = {key: image(form=form) for key, form in layout.items()}
    bodies = {key: tar(body) if key == "a.tar" else body for key, body in whole.items()}
    _, text = proposed(put(bodies), tmp_path, capsys)
    sampler = Sampler(load(tmp_path / "proposed.yaml", {}), "train")
    sample = sampler.take(sampler.beginning(), 2)
    writer = ShardWriter(str(tmp_path / "made.tfrecord"))
    for record in sample.records:
        writer.append(encode(sample.schema, record.values))
    writer.finish(json.dumps({"schema": sample.schema.to_json()}))
    scope = {"epoch": FileSet([tmp_path / "made.tfrecord"]), "Image": Image}
    (line,) = re.findall(r"# (epoch\.torch\(.*\))$", text, re.M)
    batch = next(iter(eval(line.replace("torch(256", f"numpy({len(sample.records)}"), scope)))
    assert batch["image"].shape == (len(sample.records), 4, 4, 3)
    assert "mask" not in batch or batch["mask"].shape == (2, 4, 4, 1)


def test_classes_lie_as_deep_as_the_objects_do_and_splits_are_told(put, tmp_path, capsys):
    keys = [f"{s}/{c}/{n}.png" for s in ("train", "val") for c in "ab" for n in range(3)]
    train, text = proposed(put(dict.fromkeys(keys, image())), tmp_path, capsys)
    assert train.source.label.pattern == "^[^/]+/([^/]+)/"
    assert "# The folders train, val look like parts of the data" in text


def test_proposal_names_what_is_left_out_and_what_a_split_holds_out(put, tmp_path, capsys):
    tars = {f"{n:02d}.tar": tar(image()) for n in range(16)}
    hidden = {"t/metadata/v1.metadata.json": b"{}", "_SUCCESS": b"", "e": b""}
    _, text = proposed(put(tars | hidden), tmp_path, capsys)
    assert "# omitted: 1 hidden name (_SUCCESS), 1 empty object (e)\n" in text
    assert "# the source has a table of Iceberg in t/: " in text
    found = re.search(r"# split: {eval: 0.1}  # eval holds out (\d) of 16 tars, (\d+) %", text)
    names = [ObjectInfo(name, 1) for name in tars]
    both = DatasetConfig(
        source=SourceConfig(url="s3://b/", format="webdataset"), split=SplitConfig(eval=0.1)
    )
    takes = selection_of(both.other_side())
    assert found
    assert int(found[1]) == sum(map(takes, names))
    assert int(found[2]) == round(100 * int(found[1]) / 16)


def test_empty_labels_are_joined(put, tmp_path, capsys):
    layout = {f"{n}.jpg": image(form="JPEG") for n in range(4)}
    labels = {f"{n}.txt": b"x" * (n % 2) for n in range(4)}
    _, text = proposed(put(layout | labels), tmp_path, capsys)
    assert "init saw 4 records" in text
    assert "omitted" not in text.partition("grow:")[0]


def test_a_folder_for_each_object_is_no_class(put):
    assert seen(put({f"item-{n}/x.png": image() for n in range(9)})).folders == []


def layout(*patterns, texts=("1", "02", "x/3")):
    return [pattern.replace("*", text) for text in texts for pattern in patterns]


@pytest.mark.parametrize(
    ("keys", "join"),
    [
        (layout("images/*.jpg", "masks/*.png"), {"image": "images/*.jpg", "mask": "masks/*.png"}),
        (layout("images/*.jpg", "images/*.txt"), {"image": "images/*.jpg", "txt": "images/*.txt"}),
        (layout("*.jpg", "*.json"), {"image": "*.jpg", "json": "*.json"}),
        (layout("*_image.png", "*_mask.png"), {"image": "*_image.png", "mask": "*_mask.png"}),
        (layout("*.png", "*_mask.png"), {"mask": "*_mask.png", "image": "*.png"}),
        ([*layout("*.jpg", "*.txt"), "4.jpg", "readme.md"], {"image": "*.jpg", "txt": "*.txt"}),
        # Folders that are classes or splits, numbers at the end of a name, and too few that match.
        (layout("cat/*.png", "dog/*.png"), {}),
        (layout("train/*.jpg", "val/*.txt"), {}),
        (layout("cat_*.jpg", "dog_*.jpg"), {}),
        (layout("*_1.jpg", "*_2.jpg", texts=("cat", "dog")), {}),
        ([*(f"{n}.jpg" for n in range(9)), "1.txt", *"abcdef", "2.txt.gz"], {}),
    ],
)
def test_objects_that_belong_together_are_joined_by_their_names(keys, join):
    looked_at = Survey([], True, kind="image")
    texts = _find_join(looked_at, keys)
    assert list(looked_at.join.items()) == list(join.items())
    assert bool(texts) == bool(join)


def test_a_proposal_of_pairs_runs_as_it_is(put, tmp_path, capsys):
    keys = [f"{c}/{n}" for c in ("cat", "dog") for n in range(4)]
    objects = {f"images/{key}.png": image() for key in keys}
    objects |= {f"masks/{key}.jpg": image() for key in keys[1:]}
    train, text = proposed(put({**objects, "readme.md": b"x"}), tmp_path, capsys)
    assert train.source.join == {"image": "images/*.png", "mask": "masks/*.jpg"}
    assert train.source.label.pattern == "^([^/]+)/"
    assert "are one record; init saw 7 records\n" in text
    assert "# init saw 2 more objects." in text
    assert "other suffixes" not in text
    assert '"mask": Image(4, crop="random", flip=0.5, mode="L", resample="nearest")' in text
    assert cli.run_command(["check", str(tmp_path / "proposed.yaml"), "--sources"]) == 0
    output = capsys.readouterr().out
    assert "read 7 of the first 8 units" in output
    assert "skipped: cat/0: 'masks/cat/0.jpg' is missing" in output


KINDS = {
    "tfrecord": ("x-00000-of-00002.tfrecord-00000-of-00002", None),
    "webdataset": ("shard-000.tar", tar()),
    "parquet": ("part-0.parquet", b"PAR1" + bytes(20) + b"PAR1"),
    "npy": ("a.npy", npy(10)),
    "jsonl": ("a.jsonl", b'{"text": "a"}\n{"text": "b"}\n'),
}


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("form", KINDS)
def test_each_format_is_told_by_its_suffix_or_its_first_bytes(
    put, tfrecord, tmp_path, capsys, form, named
):
    key, body = KINDS[form]
    url = put({key if named else "object": body or tfrecord, "note.txt": b"x"})
    assert seen(url).kind == form
    train, _ = proposed(url, tmp_path, capsys)
    assert train.source.format == form


@pytest.mark.parametrize(
    ("objects", "window"),
    [
        ({"a.npy": npy(10), "b.npy": npy(10)}, 10),  # a recording each
        ({"a.npy": npy(3000, 512), "b.npy": npy(2000, 512)}, 512),  # of 6 MB, 1 MiB
        ({"a.npy": npy(10)}, 1),  # a set in one array
        ({"tokens.npy": npy(5000, None, np.uint16)}, 1024),
        ({"tokens.npy": npy(70, None, np.uint16)}, 70),
    ],
)
def test_a_window_is_an_object_of_several_or_a_part_of_a_large_array(
    put, tmp_path, capsys, objects, window
):
    train, text = proposed(put(objects), tmp_path, capsys)
    assert train.source.array.window == window
    assert cli.run_command(["sample", str(tmp_path / "proposed.yaml")]) == 0
    assert "the largest object has" in text


def test_a_listing_that_goes_on_is_looked_into_folder_by_folder(put, monkeypatch):
    monkeypatch.setattr("cachecd.stores.local.PAGE", 4)
    found = seen(put({f"c{c}/{n:02}.png": image() for c in range(5) for n in range(10)}))
    assert not found.whole
    assert found.folders == ["c0", "c1", "c2", "c3", "c4"]


def test_a_file_that_is_there_is_not_overwritten(put, tmp_path, capsys):
    url, path = put({"a.png": image()}), tmp_path / "mine.yaml"
    path.write_text("mine")
    assert cli.run_command(["init", url, "-o", str(path)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("nowhere", "expected a URL such as s3://"),
        ("/nowhere", "/nowhere does not exist: name a folder, or a URL such as s3://"),
        (__file__, "is a file: name a folder"),
        ("s3://", "expected s3://BUCKET/PREFIX/"),
    ],
)
def test_a_url_that_is_none_is_refused(capsys, url, why):
    assert cli.run_command(["init", url]) == 2
    assert why in capsys.readouterr().err


def test_a_source_without_content_and_a_disk_without_room_are_said_so(put, tmp_path, monkeypatch):
    with pytest.raises(
        ConfigError, match=r"no objects with content .*\(omitted: 1 empty object \(empty\)\)"
    ):
        seen(put({"empty": b""}))
    monkeypatch.setattr(proposal, "free_bytes", lambda path: 1 << 29)
    with pytest.raises(DiskError, match=r"has 512.0 MiB free, expected at least 2.0 GiB"):
        proposal._limit(tmp_path, Survey([], True))


def test_url_of_a_zarr_folder_itself_is_refused_with_the_url_to_write(put):
    with pytest.raises(
        ConfigError, match="the url names a zarr folder itself, expected the folder"
    ):
        seen(put({"zarr.json": b"{}", "c/0": b"x"}))
