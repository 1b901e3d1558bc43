"""`cachecd verify`: each fault is found, named with its place, and nothing else is complained of."""

from __future__ import annotations

import hashlib
import json
import shutil

import numpy as np
import pytest

from cachecd.cli.checked_files import Fault, check_all, take_inventory
from cachecd.disk.layout import Layout
from cachecd_client import _core

RECORDS = [bytes([65 + i]) * (10 + i) for i in range(5)]
FRAME = 16  # bytes that frame each record


GENERATION = "0123456789abcdef"


class Cache:
    """A cache directory: `shard` and `sidecar` are the paths of a dataset's shard."""

    def __init__(self, root):
        self.root, self.layout = root, Layout(root)

    def of(self, dataset):
        return self.layout.generation(dataset, GENERATION)

    def shard(self, dataset, number, version=0):
        return self.of(dataset).shard(number, version)

    def sidecar(self, dataset, number, version=0):
        return self.of(dataset).sidecar(number, version)


@pytest.fixture
def cache(tmp_path):
    found = Cache(tmp_path / "cache")
    layout = found.layout
    for dataset in ("train", "eval"):
        found.of(dataset).shards.mkdir(parents=True)
    layout.leases.mkdir()
    train = found.of("train")
    kept = [layout.lock, layout.manifest("lease-1"), layout.excluded, layout.egress]
    kept += [layout.rotation("train"), layout.classes("train", "ab12")]
    kept += [train.listing, train.identity, train.state, train.snapshot, train.bad(7), train.old(8)]
    for file in kept:
        file.write_bytes(b"")
    write(train.temporary(9), "train", 9)
    for dataset, number in (("train", 1), ("train", 2), ("eval", 1)):
        write(found.shard(dataset, number), dataset, number)
    return found


def write(path, dataset, number, records=RECORDS):
    writer = _core.ShardWriter(str(path))
    for ordinal, record in enumerate(records):
        assert writer.append(record, number, ordinal)
    names = {"dataset": dataset, "generation": GENERATION, "number": number}
    writer.finish(json.dumps(names))


def sidecar_of(path):
    return path.with_name(path.name + ".idx")


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def faults(directory):
    return [fault for checked in check_all(take_inventory(directory)) for fault in checked.faults]


def snapshot(directory):
    """Everything about each file that a reader could change; atime aside."""
    found = {}
    for path in sorted(directory.rglob("*")):
        stat = path.lstat()
        content = hashlib.sha256(path.read_bytes()).digest() if path.is_file() else b""
        found[path] = (stat.st_mode, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, content)
    return found


@pytest.mark.parametrize(("at", "why"), [(9, "length"), (FRAME + 9, "data CRC")])
def test_a_flipped_bit_is_found_with_the_offset_of_its_record(cache, at, why):
    path = cache.shard("train", 2)
    third = sum(len(record) + FRAME for record in RECORDS[:2])
    flip(path, third + at)
    (fault,) = faults(cache.root)
    assert (fault.path, fault.offset) == (path, third)
    assert why in fault.why


@pytest.mark.parametrize(
    ("offsets", "why"),
    [
        ([0, 26, 54, 81, 110], "says that record 2 begins at byte 54, but the record begins at 53"),
        ([0], "says that the file has 1 records, but the file has 5"),
    ],
)
def test_a_sidecar_of_other_records_is_found(cache, offsets, why):
    path = cache.shard("train", 1)
    sidecar, size = sidecar_of(path), path.stat().st_size
    sidecar.unlink()
    meta = json.dumps({"dataset": "train", "generation": GENERATION, "number": 1})
    _core.write_sidecar(str(sidecar), meta, size, np.array(offsets, np.uint64))
    (fault,) = faults(cache.root)
    assert fault == Fault(sidecar, why)


def test_a_shard_under_another_shards_name_is_found(cache):
    one, two = cache.shard("train", 1), cache.shard("train", 2)
    for source, target in ((one, two), (sidecar_of(one), sidecar_of(two))):
        shutil.copy(source, target)
    assert faults(cache.root) == [Fault(sidecar_of(two), f"is the sidecar of train/{GENERATION}/1")]


def test_sidecar_of_a_shard_that_is_made_again_is_no_fault(cache):
    shard = cache.shard("train", 2)
    shard.unlink()
    (fault,) = faults(cache.root)
    assert fault.path == shard
    assert "the file is missing, but its sidecar has" in fault.why
    shard.with_name(f"{shard.stem}.bad").touch()
    assert faults(cache.root) == []


def test_a_shard_retired_while_we_look_is_left_out(cache):
    inventory = take_inventory(cache.root)
    path = cache.shard("train", 1)
    path.unlink()
    sidecar_of(path).unlink()
    checked = list(check_all(inventory))
    assert [c.path for c in checked] == [
        cache.shard("eval", 1),
        cache.shard("train", 2),
    ]
    assert [c.faults for c in checked] == [(), ()]


def test_every_bad_file_is_one_line_and_the_exit_code_is_1(cachecd, cache):
    one, two = cache.shard("train", 1), cache.shard("train", 2)
    flip(one, 14)
    flip(sidecar_of(two), 3)
    done = cachecd("verify", cache.root)
    assert (done.returncode, done.stderr) == (1, "")
    first, second, summary = done.stdout.splitlines()
    assert first.startswith(f"{one}: corrupt record at byte 0: data CRC")
    assert second.startswith(f"{sidecar_of(two)}: ")
    assert summary.startswith("3 TFRecord files, 10 records, ")
    assert summary.endswith("; 2 bad, 0 unknown")


def test_unknown_files_are_listed_and_are_no_fault(cachecd, cache):
    """What the daemon keeps beside the shards is not unknown."""
    train, layout = cache.of("train"), cache.layout
    for path in (layout.excluded, layout.egress, train.state, train.snapshot, train.bad(1)):
        path.write_bytes(b"")
    for path in (train.old(2), layout.rotation("train"), layout.classes("train", "ab12")):
        path.write_bytes(b"")
    shards = train.shards
    stray = [
        cache.root / "notes.txt",
        shards / "1.tfrecord",
        shards / "0000000003.tfrecord.bak",
        shards.parent / "0000000001.tfrecord",
        cache.layout.leases / "x.yaml",
    ]
    for path in stray:
        path.write_bytes(b"not a record")
    link = shards / "0000000004.tfrecord"
    link.symlink_to("/dev/null")
    done = cachecd("verify", cache.root)
    assert (done.returncode, done.stderr) == (0, "")
    *unknown, summary = done.stdout.splitlines()
    assert sorted(unknown) == sorted(f"{path}: unknown, not checked" for path in [*stray, link])
    assert summary.endswith("0 bad, 6 unknown")


def test_json_holds_everything(cachecd, cache):
    path = cache.shard("eval", 1)
    flip(path, 14)
    (cache.root / "notes.txt").touch()
    done = cachecd("verify", "--json", cache.root)
    assert (done.returncode, done.stderr) == (1, "")
    document = json.loads(done.stdout)
    (bad,) = document.pop("bad")
    assert (bad["path"], bad["offset"]) == (str(path), 0)
    assert bad["why"].startswith("data CRC")
    assert document == {
        "directory": str(cache.root),
        "files": 3,
        "records": 10,
        "bytes": 2 * sum(len(record) + FRAME for record in RECORDS),
        "unknown": [str(cache.root / "notes.txt")],
    }


def test_nothing_is_touched(cachecd, cache):
    flip(cache.shard("train", 1), 14)
    cache.sidecar("train", 2).unlink()
    before = snapshot(cache.root)
    assert cachecd("verify", cache.root).returncode == 1
    assert snapshot(cache.root) == before


def test_a_file_that_may_not_be_read_is_bad_with_its_reason(cache, monkeypatch):
    """As root every file may be read, so the refusal comes from the core in its own words."""
    path = cache.shard("train", 1)
    real = _core.scan

    def scan(name, verify):
        if name == str(path):
            raise PermissionError(13, "Permission denied", name)
        return real(name, verify)

    monkeypatch.setattr("cachecd.cli.checked_files.scan", scan)
    assert faults(cache.root) == [Fault(path, "cannot be read: Permission denied", unreadable=True)]


# --- plain TFRecord files -----------------------------------------------------------------------


@pytest.fixture
def plain(tmp_path):
    """TFRecord files as others write them: no sidecars, some with -of- names, in folders."""
    directory = tmp_path / "plain"
    for name in ("a.tfrecord", "deep/b.tfrecords", "c.tfrecord-00001-of-00002"):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, "x", 1)
        sidecar_of(path).unlink()
    (directory / "dataset_info.json").write_text("{}")
    return directory


def test_plain_files_need_no_sidecar(cachecd, plain):
    done = cachecd("verify", plain)
    assert (done.returncode, done.stderr) == (0, "")
    *unknown, summary = done.stdout.splitlines()
    assert unknown == [f"{plain}/dataset_info.json: unknown, not checked"]
    assert summary.startswith("3 TFRecord files, 15 records, ")


def test_a_plain_files_sidecar_is_checked_if_there_is_one(plain):
    path = plain / "a.tfrecord"
    _core.write_sidecar(str(sidecar_of(path)), "{}", path.stat().st_size + 1, _core.scan(str(path)))
    (fault,) = faults(plain)
    assert fault.path == sidecar_of(path)


def test_a_directory_with_nothing_to_verify_is_exit_2_and_not_a_success(cachecd, tmp_path):
    (tmp_path / "notes.txt").touch()
    done = cachecd("verify", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "neither a cache directory nor a directory with TFRecord files" in done.stderr


# --- records that come twice ------------------------------------------------------------------


def numbered(cache, number, units, *, dataset="train", ordinals=None, version=0):
    """A shard of records of these units."""
    path = cache.shard(dataset, number, version)
    path.unlink(missing_ok=True)
    cache.sidecar(dataset, number, version).unlink(missing_ok=True)
    writer = _core.ShardWriter(str(path))
    for unit, ordinal in zip(units, ordinals or [0] * len(units), strict=True):
        assert writer.append(b"record %d of %d" % (ordinal, unit), unit, ordinal)
    writer.finish(json.dumps({"dataset": dataset, "generation": GENERATION, "number": number}))
    return path


def test_a_record_that_lies_in_two_shards_is_a_fault_of_the_later_shard(cachecd, cache):
    numbered(cache, 1, [4, 5, 6])
    second = numbered(cache, 2, [7, 6])
    done = cachecd("verify", cache.root)
    assert done.returncode == 1
    assert f"{second}: holds a record of unit 6 that 0000000001.tfrecord holds too" in done.stdout
    assert "3 TFRecord files" in done.stdout
    assert "1 bad" in done.stdout


def test_a_retired_shard_and_an_older_version_stand_beside_what_took_their_place(cache):
    numbered(cache, 1, [5, 6])
    numbered(cache, 2, [6, 7])
    cache.of("train").old(1).touch()
    numbered(cache, 2, [6], version=1)
    assert faults(cache.root) == []
