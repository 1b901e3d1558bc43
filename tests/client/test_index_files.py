"""python -m cachecd_client.index: sidecars and inflated files, whole or not at all, made once."""

import gzip
import os
import signal

import pytest

from cachecd_client import _core
from cachecd_client.errors import CallerError
from cachecd_client.files.file_set import FileSet
from cachecd_client.index import main
from tests.client.foreign import numbers, of_tensorflow, put
from tests.client.records import labels
from tests.core.processes import files_limited_to
from tests.core.shards import flip, frames
from tests.frameworks import tf

COMPRESSIONS = [None, "GZIP", "ZLIB", "ZSTD"]


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def index(out):
    return lambda *paths: main([*map(str, paths), "--out", str(out)])


@pytest.fixture
def no_scans(monkeypatch):
    def forbid():
        def scan(path):
            raise AssertionError(f"{path} was walked")

        monkeypatch.setattr(_core, "scan", scan)

    return forbid


def names(folder):
    return sorted(os.listdir(folder))


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_indexed_files_open_without_a_scan(tmp_path, index, out, no_scans, capsys, compression):
    ending = {"GZIP": ".gz", "ZLIB": ".zlib", "ZSTD": ".zst"}.get(compression, "")
    paths = [
        put(tmp_path / f"{i}.tfrecord{ending}", numbers(5 * i, 5), compression) for i in range(4)
    ]
    assert index(*paths) == 0
    size = len(frames(numbers(0, 20)))
    assert capsys.readouterr().out == f"{out}: 4 files, 20 records, {size} bytes; 0 up to date\n"
    indexed = [out / f"{i}.tfrecord" for i in range(4)]
    assert names(out) == sorted(
        path.name for i in indexed for path in (i, i.with_name(i.name + ".idx"))
    )
    no_scans()
    files = FileSet(indexed)
    assert (files.num_records, files.num_bytes) == (20, size)
    assert labels(files.numpy(batch_size=5, shuffle=False)) == list(range(20))
    assert index(*paths) == 0
    assert "4 up to date" in capsys.readouterr().out


def by_tensorflow(path, records, compression):
    options = tf.io.TFRecordOptions(compression_type=compression)
    with tf.io.TFRecordWriter(str(path), options) as writer:
        for record in records:
            writer.write(record)
    return path


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_what_tensorflow_wrote_is_read_record_for_record(tmp_path, index, out, compression):
    texts = [os.urandom(size) for size in (0, 1, 100, 70_000, 3)]
    records = [
        of_tensorflow({"text": text, "sizes": len(text)}).SerializeToString() for text in texts
    ]
    assert index(by_tensorflow(tmp_path / "a", records, compression)) == 0
    [batch] = FileSet(out / "a").numpy(batch_size=5, shuffle=False)
    assert list(batch["text"]) == texts
    assert batch["sizes"].tolist() == [len(text) for text in texts]


def test_a_file_rewritten_in_its_own_folder_is_indexed_anew(out, index):
    out.mkdir()
    path = put(out / "a", numbers(0, 3))
    assert index(path) == 0
    put(path, numbers(5, 3))
    os.utime(path, ns=(0, 0))
    assert index(path) == 0
    assert names(out) == ["a", "a.idx"]
    assert labels(FileSet(path).numpy(1, shuffle=False)) == [5, 6, 7]


@pytest.mark.parametrize("damage", ["sidecar", "copy", "no copy"])
def test_what_is_not_whole_is_made_anew(tmp_path, index, out, capsys, damage):
    path = put(tmp_path / "a.gz", numbers(0, 3), "GZIP")
    assert index(path) == 0
    if damage == "no copy":
        (out / "a").unlink()
    elif damage == "copy":
        os.truncate(out / "a", 40)
    else:
        (out / "a.idx").unlink()
        (out / "a").unlink()
    assert index(path) == 0
    assert capsys.readouterr().out.count("0 up to date") == 2
    assert labels(FileSet(out / "a").numpy(1, shuffle=False)) == [0, 1, 2]


def test_files_of_others_are_left_alone(tmp_path, index, out, capsys):
    path = put(tmp_path / "a.gz", numbers(0, 3), "GZIP")
    out.mkdir()
    (out / "a").write_bytes(b"mine")
    assert index(path) == 1
    assert "does not say that it was made from" in capsys.readouterr().err
    assert (out / "a").read_bytes() == b"mine"
    (out / "b").write_bytes(frames(numbers(0, 3)))
    for content in (b"0 116\n116 90\n", b"\x89SOMETOOL"):
        (out / "b.idx").write_bytes(content)
        assert index(out / "b") == 1
        assert (out / "b.idx").read_bytes() == content
    assert names(out) == ["a", "b", "b.idx"]


@pytest.mark.parametrize(
    ("files", "why"),
    [
        (["missing"], "is not a file"),
        (["a.gz", "a"], "would both be"),
        (["out/packed"], "would replace itself"),
    ],
)
def test_files_that_cannot_be_indexed_together_are_refused(
    tmp_path, index, out, capsys, files, why
):
    out.mkdir()
    put(tmp_path / "a", numbers(0, 3))
    put(tmp_path / "a.gz", numbers(0, 3), "GZIP")
    put(out / "packed", numbers(0, 3), "GZIP")
    with pytest.raises(SystemExit) as ended:
        index(*(tmp_path / name for name in files))
    assert ended.value.code == 2
    assert why in capsys.readouterr().err
    assert names(out) == ["packed"]


def damaged_stream(path):
    put(path, numbers(0, 3), "GZIP")
    flip(path, -3)
    return f"byte {path.stat().st_size}: GZIP stream: incorrect length check"


def damaged_record(path):
    records = numbers(0, 3)
    content = bytearray(frames(records))
    at = len(frames(records[:1]))
    content[at + 8] ^= 1
    path.write_bytes(gzip.compress(content))
    return f"byte {at}: length CRC"


def no_records(path):
    path.write_bytes(b"neither one nor the other")
    return "byte 0: length CRC"


@pytest.mark.parametrize("damage", [damaged_stream, damaged_record, no_records])
def test_a_damaged_file_is_named_with_its_byte_and_the_others_are_indexed(
    tmp_path, index, out, capsys, damage
):
    paths = [put(tmp_path / f"{i}", numbers(0, 3), "GZIP") for i in range(20)]
    expected = damage(paths[7])
    assert index(*paths) == 1
    found = capsys.readouterr()
    assert found.err.startswith(f"{paths[7]}: ")
    assert expected in found.err
    assert found.err.count("\n") == 1
    assert "; 1 failed" in found.out
    assert names(out) == sorted(f"{i}{end}" for i in range(20) if i != 7 for end in ("", ".idx"))


def test_a_full_disk_leaves_nothing_of_the_file(tmp_path, index, out, capsys):
    path = put(tmp_path / "a", [os.urandom(50_000)], "GZIP")
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with files_limited_to(5000):
            assert index(path) == 1
    finally:
        signal.signal(signal.SIGXFSZ, before)
    assert "File too large" in capsys.readouterr().err
    assert names(out) == []


def test_compressed_files_in_a_set_name_the_command(tmp_path, out, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plain = put(tmp_path / "plain", numbers(0, 3))
    packed = [put(tmp_path / f"a {i}.gz", numbers(0, 3), "GZIP") for i in range(2)]
    with pytest.raises(CallerError, match=r"a 0.gz is compressed \(GZIP\)") as caught:
        FileSet([plain, *packed]).numpy(1)
    *_, command = str(caught.value).splitlines()
    assert command == f"python -m cachecd_client.index '{packed[0]}' '{packed[1]}' --out DIR"
    assert os.system(command.replace("DIR", str(out))) == 0
    assert FileSet([plain, *(out / f"a {i}" for i in range(2))]).num_records == 9
