import os

import numpy as np
import pytest
import torch

from cachecd_client import resources
from cachecd_client.errors import CallerError
from cachecd_client.files.file_set import FileSet
from tests.client.records import examples, record, schema, write, write_set


def equals(batch, row: int, number: int) -> bool:
    expected = record(number)
    found = {name: column[row] for name, column in batch.items()}
    assert found.keys() == expected.keys()
    return all(
        np.array_equal(found[name], value)
        if isinstance(value, np.ndarray) or name == "many"
        else found[name] == ([v.encode() for v in value] if name == "names" else value)
        for name, value in expected.items()
    )


@pytest.fixture
def shard(tmp_path):
    return write(tmp_path / "a.tfrecord", examples(range(12)))


def test_every_kind_of_feature_arrives_as_it_was_written(shard):
    with FileSet([shard]).numpy(batch_size=4, shuffle=False) as loader:
        batches = list(loader)
    assert len(batches) == 3
    for number in range(12):
        assert equals(batches[number // 4], number % 4, number)


def test_figures_and_schema_come_from_the_sidecar(shard):
    files = FileSet([shard])
    assert repr(files).startswith("<FileSet of 1 files, the first is ")
    assert files.num_records == 12
    assert files.num_bytes == shard.stat().st_size
    assert files.schema == schema()
    assert repr(files).startswith("<FileSet of 1 files, 12 records, the first is ")


def test_without_a_sidecar_the_file_is_walked_and_its_schema_inferred(shard):
    os.unlink(f"{shard}.idx")
    files = FileSet([shard])
    assert files.num_records == 12
    found = {f.name: (f.dtype, f.shape) for f in files.schema.features}
    assert (found["image"], found["label"]) == (("bytes", ()), ("int64", ()))
    assert (found["many"], found["vector"]) == (("int64", None), ("float32", (2,)))
    batch = next(iter(files.numpy(batch_size=12, shuffle=False)))
    assert batch["label"].tolist() == list(range(12))
    assert batch["image"][3] == record(3)["image"].tobytes()
    assert list(batch["names"]) == [[str(i).encode(), b"x"] for i in range(12)]
    assert not os.path.exists(f"{shard}.idx")


def test_a_dataloader_over_files_names_what_it_takes(shard):
    files = FileSet(shard)
    assert files
    with pytest.raises(CallerError, match=r"FileSet has no length.*to_dataset"):
        list(torch.utils.data.DataLoader(files, batch_size=2))


def test_missing_files_are_counted_and_named(shard, tmp_path):
    with pytest.raises(CallerError, match="has no files"):
        FileSet([])
    with pytest.raises(CallerError, match=r"2 of 3 files do not exist, for example .*/x"):
        FileSet([tmp_path / "x", shard, tmp_path / "y"])


def test_the_fingerprint_names_the_set_wherever_it_lies(shard, tmp_path):
    moved = write(tmp_path / "elsewhere/a.tfrecord", examples(range(12)))
    other = write(tmp_path / "b.tfrecord", examples(range(12)))
    longer = write(tmp_path / "longer/a.tfrecord", examples(range(13)))
    prints = [FileSet([path]).fingerprint for path in (shard, moved, other, longer)]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3
    assert FileSet([shard, other]).fingerprint != FileSet([other, shard]).fingerprint


def test_a_set_larger_than_half_of_the_memory_has_the_leases_window_unless_all_is_asked_for(
    tmp_path, monkeypatch
):
    paths = write_set(tmp_path, 40, 20)
    size = sum(path.stat().st_size for path in paths)
    monkeypatch.setattr(resources, "memory", lambda _: size)
    assert FileSet(paths).window == size // 2
    for whole in None, 0:
        assert FileSet(paths, window=whole).window is None
    monkeypatch.setattr(resources, "memory", lambda _: 2 * size)
    assert FileSet(paths).window is None
    with pytest.raises(CallerError, match="window"):
        FileSet(paths, window="all")
