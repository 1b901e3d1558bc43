"""What `cache_index=` keeps: found again, never stale, by several processes, through damage and kill."""

import fcntl
import logging
import os
import shutil
import struct
import threading

import pytest

from cachecd_client import _core, index_cache, locating
from cachecd_client.errors import CorruptRecordError, NoSpaceError
from cachecd_client.fileset import FileSet
from cachecd_client.scratch import Scratch
from tests.client.foreign import KILLED_BEYOND, files_limited_to, numbers, put, python

COMPRESSIONS = [None, "GZIP", "ZLIB"]


@pytest.fixture
def kept(tmp_path):
    return tmp_path / "kept"


@pytest.fixture
def looked(monkeypatch):
    """The paths that were walked or inflated, in place of found in the index."""
    paths = []
    look = locating._Search._look

    def noticed(search, path, draft):
        paths.append(path)
        return look(search, path, draft)

    monkeypatch.setattr(locating._Search, "_look", noticed)
    return paths


def labels(files: FileSet) -> list[int]:
    with files.numpy(batch_size=1, shuffle=False) as loader:
        return [int(batch["label"][0]) for batch in loader]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_what_was_found_is_found_again_without_looking(tmp_path, kept, looked, compression):
    paths = [put(tmp_path / f"{i}", numbers(10 * i, 3 + i), compression) for i in range(3)]
    expected = [*range(3), *range(10, 14), *range(20, 25)]
    for _ in range(3):
        assert labels(FileSet(paths, cache_index=kept)) == expected
    assert sorted(looked) == sorted(map(str, paths))


def test_nothing_is_written_beside_the_data(tmp_path, kept):
    (tmp_path / "data").mkdir()
    path = put(tmp_path / "data/a", numbers(0, 3), "GZIP")
    assert FileSet(path, cache_index=kept).num_records == 3
    assert os.listdir(tmp_path / "data") == ["a"]


def test_names_come_from_hashes_alone(tmp_path, kept):
    names = ["a b", "..x", "\udcff", "a" * 200, "ä\n*"]
    paths = [put(tmp_path / name, numbers(0, 1), "GZIP") for name in names]
    files = FileSet(paths, cache_index=kept)
    [batch] = files.numpy(batch_size=5)
    assert batch["text"].tolist() == [b"text of 0"] * 5
    assert files.fingerprint != FileSet(paths[::-1]).fingerprint
    entries = set(os.listdir(kept)) - {"lock"}
    assert len(entries) == 10
    assert all(
        set(entry.removesuffix(".idx").removesuffix(".tfrecord")) <= set("0123456789abcdef-")
        for entry in entries
    )


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_file_that_changed_is_looked_at_again_and_its_old_entry_removed(
    tmp_path, kept, looked, compression
):
    path = put(tmp_path / "a", numbers(0, 3), compression)
    before = path.stat()
    assert labels(FileSet(path, cache_index=kept)) == [0, 1, 2]
    entries = set(os.listdir(kept))

    put(path, numbers(5, 3), compression)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert labels(FileSet(path, cache_index=kept)) == [5, 6, 7]

    put(path, numbers(5, 4), compression)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert labels(FileSet(path, cache_index=kept)) == [5, 6, 7, 8]
    assert len(looked) == 3
    now = set(os.listdir(kept))
    assert len(now) == len(entries)
    assert now & entries == {"lock"}


def touch(path) -> None:
    found = path.stat()
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + 1))


def test_a_copy_that_another_set_reads_stays_while_it_does(tmp_path, kept, looked, in_child):
    path = put(tmp_path / "a", numbers(0, 3), "GZIP")
    for made in range(2):  # made by this set, or found
        files = FileSet(path, cache_index=kept)
        loader = files.numpy(batch_size=3, shuffle=False)
        [located] = files._located
        touch(path)
        assert labels(FileSet(path, cache_index=kept)) == [0, 1, 2]
        assert len(looked) == made + 2
        assert os.path.exists(located.data)
        assert [batch["label"].tolist() for batch in loader] == [[0, 1, 2]]
        assert in_child(lambda files=files: labels(files)) == [0, 1, 2]
        del files, loader, located
    touch(path)
    assert labels(FileSet(path, cache_index=kept)) == [0, 1, 2]
    assert len(list(kept.glob("*.tfrecord"))) == 1


def test_who_saw_an_older_file_removes_no_newer_entry(tmp_path, kept):
    path = put(tmp_path / "a", numbers(0, 3), "GZIP")
    older = index_cache.Source.of(str(path))
    touch(path)
    _ = FileSet(path, cache_index=kept).num_records
    entries = set(os.listdir(kept))
    with index_cache.IndexCache(str(kept)).making(older, threading.Event()) as draft:
        assert draft is not None
    assert set(os.listdir(kept)) == entries


def test_a_copy_of_the_file_elsewhere_has_an_entry_of_its_own(tmp_path, kept, looked):
    path = put(tmp_path / "a", numbers(0, 3))
    shutil.copy2(path, tmp_path / "b")
    _ = FileSet([path, tmp_path / "b"], cache_index=kept).num_records
    assert len(looked) == 2


def test_a_link_to_the_file_shares_its_entry(tmp_path, kept, looked):
    path = put(tmp_path / "a", numbers(0, 3), "GZIP")
    (tmp_path / "link").symlink_to(path)
    for one in (path, tmp_path / "link"):
        assert labels(FileSet(one, cache_index=kept)) == [0, 1, 2]
    assert len(looked) == 1


@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_an_entry_is_made_anew_whatever_was_altered_or_cut_in_its_index(
    tmp_path, kept, looked, compression
):
    path = put(tmp_path / "a", numbers(0, 2), compression)
    assert FileSet(path, cache_index=kept).num_records == 2
    [index] = kept.glob("*.idx")
    good = index.read_bytes()
    places = range(0, len(good), 7)
    spoilt = [good[:size] for size in places]
    spoilt += [good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :] for at in places]
    for content in spoilt:
        index.write_bytes(content)
        assert FileSet(path, cache_index=kept).num_records == 2
        assert index.read_bytes() == good
    assert len(looked) == 1 + len(spoilt)


@pytest.mark.parametrize(
    "meta", ["", "[]", "{}", "no JSON", '{"source": null, "compression": null}']
)
def test_an_index_that_says_something_else_is_made_anew(tmp_path, kept, looked, meta):
    path = put(tmp_path / "a", numbers(0, 2))
    _ = FileSet(path, cache_index=kept).num_records
    [index] = kept.glob("*.idx")
    index.unlink()
    _core.write_sidecar(str(index), meta, path.stat().st_size, _core.scan(str(path)))
    assert FileSet(path, cache_index=kept).num_records == 2
    assert len(looked) == 2


@pytest.mark.parametrize("spoil", [os.unlink, lambda copy: os.truncate(copy, 40)])
def test_an_inflated_copy_that_is_not_whole_is_made_anew(tmp_path, kept, looked, spoil):
    path = put(tmp_path / "a", numbers(0, 3), "GZIP")
    _ = FileSet(path, cache_index=kept).num_records
    [copy] = kept.glob("*.tfrecord")
    spoil(copy)
    assert labels(FileSet(path, cache_index=kept)) == [0, 1, 2]
    assert len(looked) == 2


def test_an_altered_copy_is_a_corrupt_record_of_the_users_file(tmp_path, kept):
    path = put(tmp_path / "a", numbers(0, 3), "GZIP")
    _ = FileSet(path, cache_index=kept).num_records
    [copy] = kept.glob("*.tfrecord")
    content = bytearray(copy.read_bytes())
    content[-1] ^= 1
    copy.write_bytes(content)
    last = int(_core.scan(str(copy))[-1])
    files = FileSet(path, cache_index=kept)
    with pytest.raises(CorruptRecordError) as caught:
        list(files.numpy(batch_size=3, on_corrupt="raise"))
    assert (caught.value.path, caught.value.offset) == (str(path), last)
    with files.numpy(batch_size=3) as loader:
        list(loader)
        assert [(found, at) for found, at, _ in loader.corrupt] == [(str(path), last)]


def test_what_is_corrupt_is_not_kept(tmp_path, kept):
    path = put(tmp_path / "a", numbers(0, 3), "GZIP")
    path.write_bytes(path.read_bytes()[:-1])
    for _ in range(2):
        with pytest.raises(CorruptRecordError):
            _ = FileSet(path, cache_index=kept).num_records
    assert os.listdir(kept) == ["lock"]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_directory_that_cannot_be_made_costs_one_line_and_nothing_else(
    tmp_path, caplog, compression
):
    (tmp_path / "file").touch()
    paths = [put(tmp_path / f"{i}", numbers(i, 1), compression) for i in range(5)]
    with caplog.at_level(logging.WARNING, "cachecd"):
        files = FileSet(paths, cache_index=tmp_path / "file/kept")
        assert labels(files) == [0, 1, 2, 3, 4]
    [line] = caplog.messages
    assert "file/kept" in line
    assert "nothing more is kept" in line


def test_a_full_disk_costs_one_line_and_leaves_nothing(tmp_path, kept, caplog):
    paths = [put(tmp_path / f"{i}", numbers(200 * i, 200)) for i in range(3)]
    with files_limited_to(1000), caplog.at_level(logging.WARNING, "cachecd"):
        files = FileSet(paths, cache_index=kept)
        assert files.num_records == 600
    assert "File too large" in caplog.messages[0]
    assert len(caplog.messages) == 1
    assert os.listdir(kept) == ["lock"]


def test_a_disk_too_full_for_the_index_keeps_no_copy_either(tmp_path, kept, caplog):
    path = put(tmp_path / "a", [b""] * 1000, "GZIP")  # 16 bytes each, and 20 in the index
    with files_limited_to(18_000), caplog.at_level(logging.WARNING, "cachecd"):
        assert FileSet(path, cache_index=kept).num_records == 1000
    assert "File too large" in caplog.messages[0]
    assert os.listdir(kept) == ["lock"]


def test_a_copy_that_cannot_be_kept_is_made_for_this_set_alone(tmp_path, kept, caplog, monkeypatch):
    path = put(tmp_path / "a", numbers(0, 3), "GZIP")
    _ = FileSet(path, cache_index=kept).num_records
    [copy] = kept.glob("*.tfrecord")
    copy.unlink()
    (copy / "in the way").mkdir(parents=True)
    remains = []  # of the first copy when the second is begun: the disk may be the same

    def scratch():
        remains.extend(kept.glob("*.tmp*"))
        return Scratch()

    monkeypatch.setattr(locating, "Scratch", scratch)
    with caplog.at_level(logging.WARNING, "cachecd"):
        assert labels(FileSet(path, cache_index=kept)) == [0, 1, 2]
    assert len(caplog.messages) == 1
    assert not remains


def test_without_room_in_either_place_the_error_says_what_to_set(tmp_path, kept):
    path = put(tmp_path / "a", numbers(0, 200), "GZIP")
    with files_limited_to(1000), pytest.raises(NoSpaceError, match=r"TMPDIR.*cache_index="):
        _ = FileSet(path, cache_index=kept).num_records
    assert os.listdir(kept) == ["lock"]


def test_it_can_be_read_by_those_who_may_not_write(tmp_path, kept, looked):
    path = put(tmp_path / "a", numbers(0, 3), "GZIP")
    _ = FileSet(path, cache_index=kept).num_records
    (kept / "lock").unlink()
    (kept / "lock").mkdir()  # so that nobody can make an entry
    assert labels(FileSet(path, cache_index=kept)) == [0, 1, 2]
    assert len(looked) == 1


READ = """
import sys
from cachecd_client import FileSet, locating
looked, look = [], locating._Search._look
locating._Search._look = lambda *of: (looked.append(of[1]), look(*of))[1]
files = FileSet(sys.argv[3:], cache_index=sys.argv[2])
print(sum(int(batch["label"].sum()) for batch in files.numpy(batch_size=10)), *looked)
"""


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_two_processes_at_once_make_each_entry_once_and_read_the_same(
    tmp_path, kept, environment, compression
):
    paths = [put(tmp_path / f"{i}", numbers(100 * i, 100), compression) for i in range(20)]
    readers = [python(READ, "", kept, *paths, environment=environment) for _ in range(2)]
    looked = []
    for reader in readers:
        output, errors = reader.communicate(timeout=60)
        total, *paths_looked_at = output.split()
        assert (total, errors) == (str(sum(range(2000))), "")
        looked += paths_looked_at
    assert sorted(looked) == sorted(map(str, paths))
    entries = [name for name in os.listdir(kept) if name != "lock"]
    assert len(entries) == (20 if compression is None else 40)
    assert not [name for name in entries if "tmp" in name]


def test_who_comes_second_waits_and_takes_what_the_first_has_made(
    tmp_path, kept, looked, wait_until
):
    path = put(tmp_path / "a", numbers(0, 3), "GZIP")
    _ = FileSet(path, cache_index=kept).num_records
    [index] = kept.glob("*.idx")
    whole = index.read_bytes()
    index.unlink()
    with open(kept / "lock", "r+b") as lock:  # another process is at work on all files
        every = struct.pack("hhqqi0q", fcntl.F_WRLCK, 0, 0, 0, 0)
        fcntl.fcntl(lock, fcntl.F_OFD_SETLK, every)
        found = []
        reader = threading.Thread(
            target=lambda: found.append(FileSet(path, cache_index=kept).num_records)
        )
        reader.start()
        opened = f"{kept}/lock"
        wait_until(lambda: sum(o == opened for o in open_files()) == 2)
        index.write_bytes(whole)
        assert not found
    reader.join(10)
    assert found == [3]
    assert len(looked) == 1


def open_files() -> list[str]:
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:
            continue  # closed meanwhile
    return found


@pytest.mark.parametrize("limit", [0, 3000, 500_000])
def test_killed_in_the_middle_it_leaves_nothing_that_hinders_the_next(
    tmp_path, kept, environment, limit
):
    path = put(tmp_path / "a", numbers(0, 50_000), "GZIP")
    killed = python(KILLED_BEYOND + READ, limit, kept, path, environment=environment)
    _, errors = killed.communicate(timeout=60)
    assert killed.returncode < 0, errors
    left = set(os.listdir(kept)) - {"lock"}
    assert left
    assert not list(kept.glob("*.idx"))
    assert FileSet(path, cache_index=kept).num_records == 50_000
    entries = set(os.listdir(kept)) - {"lock"}
    assert len(entries) == 2
    assert not entries & left


def test_killed_between_copy_and_index_the_entry_is_made_again(tmp_path, kept, looked):
    path = put(tmp_path / "a", numbers(0, 3), "GZIP")
    _ = FileSet(path, cache_index=kept).num_records
    [index] = kept.glob("*.idx")
    index.unlink()
    assert labels(FileSet(path, cache_index=kept)) == [0, 1, 2]
    assert len(looked) == 2


def test_a_file_changed_while_it_is_looked_at_is_not_kept(tmp_path, kept, monkeypatch):
    path = put(tmp_path / "a", numbers(0, 3))
    scan = _core.scan

    def disturbed(name):
        found = scan(name)
        os.utime(name, ns=(1, 1))
        return found

    monkeypatch.setattr(_core, "scan", disturbed)
    assert FileSet(path, cache_index=kept).num_records == 3
    assert os.listdir(kept) == ["lock"]
