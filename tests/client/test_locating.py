"""Files without a sidecar: walked many at a time, once; and what is said when they cannot be."""

import json
import os

import pytest

from cachecd_client import _core
from cachecd_client.errors import CallerError, CorruptRecordError, CorruptSidecarError
from cachecd_client.files.file_set import FileSet
from tests.client.foreign import numbers, put
from tests.client.records import write
from tests.core.shards import flip, frames


@pytest.fixture
def walks(monkeypatch):
    paths = []
    scan = _core.scan

    def noticed(path):
        paths.append(path)
        return scan(path)

    monkeypatch.setattr(_core, "scan", noticed)
    return paths


def labels(files: FileSet) -> list[int]:
    with files.numpy(batch_size=1, shuffle=False) as loader:
        return [int(batch["label"][0]) for batch in loader]


def test_files_are_walked_once_for_figures_schema_and_every_pass(tmp_path, walks):
    paths = [put(tmp_path / f"{i}", numbers(4 * i, 4)) for i in range(20)]
    files = FileSet(paths)
    assert files.num_records == 80
    assert files.num_bytes == sum(path.stat().st_size for path in paths)
    assert files.schema.names == ("label", "text")
    loader = files.numpy(batch_size=80, shuffle=False)
    for _ in range(2):
        assert [batch["label"].tolist() for batch in loader] == [list(range(80))]
    assert sorted(walks) == sorted(map(str, paths))


def test_the_first_bad_file_is_named_with_its_offset(tmp_path):
    paths = [put(tmp_path / f"{i}", numbers(0, 3)) for i in range(64)]
    second = len(frames(numbers(0, 1)))
    for i in (7, 30):
        flip(paths[i], second + 3)
    for _ in range(5):
        with pytest.raises(CorruptRecordError, match="length CRC") as caught:
            _ = FileSet(paths).num_records
        assert (caught.value.path, caught.value.offset) == (str(paths[7]), second)


@pytest.mark.parametrize(
    ("described", "why"),
    [
        ({"version": 1}, "not a schema: KeyError"),
        ({"version": 2, "features": []}, "schema version 2, expected 1"),
        ({"version": 1, "features": [{"name": "a", "kind": "int", "dtype": "int64", "shape": []}]},
         "feature 'a': unknown kind 'int'"),
    ],
)  # fmt: skip
def test_a_sidecar_whose_schema_is_none_is_corrupt_and_named(tmp_path, described, why):
    path = put(tmp_path / "a", numbers(0, 3))
    meta = json.dumps({"schema": described})
    _core.write_sidecar(f"{path}.idx", meta, path.stat().st_size, _core.scan(str(path)))
    with pytest.raises(CorruptSidecarError, match=why):
        _ = FileSet(path).schema


@pytest.mark.parametrize("size", [-1, +17])
def test_a_sidecar_that_no_longer_fits_its_file_is_an_error_and_hides_nothing(tmp_path, size):
    path = write(tmp_path / "a", numbers(0, 3))
    described = path.stat().st_size
    os.truncate(path, described + size)
    with pytest.raises(CorruptSidecarError, match="delete or rebuild it") as caught:
        FileSet(path).numpy(batch_size=1, on_corrupt="replace")
    assert caught.value.path == f"{path}.idx"
    assert f"describes {described} bytes, but {path} has {described + size}" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("data-*.tfrecord", r"patterns are not expanded, give sorted\(glob\.glob\('.*/data-\*"),
        (".", "a directory: give the files in it"),
        ("/dev/null", "which is not a regular file"),
        ("s3://bucket/a.tfrecord", "reads local files"),
        ("missing", r"missing$"),
    ],
)
def test_what_is_no_file_is_refused_with_what_to_do(tmp_path, monkeypatch, name, hint):
    put(tmp_path / "data-1.tfrecord", numbers(0, 1))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CallerError, match=hint):
        FileSet(name if "://" in name else os.path.join(tmp_path, name))
