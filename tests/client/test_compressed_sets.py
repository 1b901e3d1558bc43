"""Sets of compressed files: read as if they were not, and gone without a trace."""

import gc
import gzip
import os
import pickle
import shutil
import signal
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import tensorflow as tf

from cachecd_client import scratch
from cachecd_client.errors import CorruptRecordError, NoSpaceError, WorldError
from cachecd_client.fileset import FileSet
from cachecd_client.loader import Loader
from cachecd_client.scratch import Scratch
from tests.client.foreign import KILLED_BEYOND, files_limited_to, numbers, put, python
from tests.core.shards import flip, frames


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """Where inflated copies go: a place of the test's own."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def labels(loader) -> list[int]:
    return [int(label) for batch in loader for label in batch["label"]]


def by_tensorflow(path, records, compression):
    options = tf.io.TFRecordOptions(compression_type=compression or "")
    with tf.io.TFRecordWriter(str(path), options) as writer:
        for record in records:
            writer.write(record)
    return path


@pytest.mark.parametrize("compression", [None, "GZIP", "ZLIB"])
def test_what_tensorflow_wrote_is_read_record_for_record(tmp_path, compression):
    texts = [os.urandom(size) for size in (0, 1, 100, 70_000, 3)]
    records = [
        tf.train.Example(
            features=tf.train.Features(
                feature={
                    "text": tf.train.Feature(bytes_list=tf.train.BytesList(value=[text])),
                    "sizes": tf.train.Feature(int64_list=tf.train.Int64List(value=[len(text)])),
                }
            )
        ).SerializeToString()
        for text in texts
    ]
    path = by_tensorflow(tmp_path / "a", records, compression)
    [batch] = FileSet(path).numpy(batch_size=5, shuffle=False)
    assert list(batch["text"]) == texts
    assert batch["sizes"].tolist() == [len(text) for text in texts]


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_what_tensorflow_wrote_without_records_is_empty(tmp_path, compression):
    assert FileSet(by_tensorflow(tmp_path / "a", [], compression)).num_records == 0


def test_compressed_plain_and_described_files_make_one_set(tmp_path):
    paths = [
        put(tmp_path / "0", numbers(0, 5), "GZIP"),
        put(tmp_path / "1", numbers(5, 5)),
        put(tmp_path / "2", numbers(10, 5), "ZLIB"),
    ]
    files = FileSet(paths)
    assert files.num_records == 15
    assert files.files == list(map(str, paths))
    assert files.num_bytes == len(frames(numbers(0, 15)))
    assert labels(files.numpy(batch_size=5, shuffle=False)) == list(range(15))
    assert sorted(labels(files.torch(batch_size=5))) == list(range(15))


def test_the_order_is_that_of_the_same_files_uncompressed(tmp_path):
    (tmp_path / "plain").mkdir()
    plain = [put(tmp_path / f"plain/{i}", numbers(9 * i, 9)) for i in range(4)]
    packed = [put(tmp_path / f"{i}", numbers(9 * i, 9), "GZIP") for i in range(4)]
    orders = [
        labels(FileSet(paths, window=window).numpy(batch_size=4, seed=3))
        for window in (None, 600)
        for paths in (plain, packed)
    ]
    assert orders[0] == orders[1]
    assert orders[2] == orders[3]
    assert orders[0] != orders[2]


def test_a_corrupt_record_is_named_by_the_users_path_and_its_inflated_offset(tmp_path):
    records = numbers(0, 10)
    content = bytearray(frames(records))
    at = len(frames(records[:4]))
    content[at + 14] ^= 1  # written so: the compression is sound
    path = tmp_path / "a"
    path.write_bytes(gzip.compress(content))
    files = FileSet(path)
    with files.numpy(batch_size=5) as loader:
        assert 4 not in labels(loader)
        [(found, offset, why)] = loader.corrupt
    assert (found, offset) == (str(path), at)
    assert "data CRC" in why
    with pytest.raises(CorruptRecordError) as caught:
        labels(files.numpy(batch_size=5, on_corrupt="raise"))
    assert (caught.value.path, caught.value.offset) == (str(path), at)


def test_damaged_compression_is_found_before_anything_is_read_and_leaves_nothing(
    tmp_path, temporary
):
    paths = [put(tmp_path / f"{i}", numbers(0, 100), "GZIP") for i in range(20)]
    flip(paths[7], -3)
    with pytest.raises(CorruptRecordError, match="incorrect length check") as caught:
        FileSet(paths).numpy(batch_size=5)
    assert caught.value.path == str(paths[7])
    assert os.listdir(temporary) == []


def test_copies_go_with_the_last_that_needs_them(tmp_path, temporary):
    path = put(tmp_path / "a", numbers(0, 10), "GZIP")
    files = FileSet(path)
    loader = files.numpy(batch_size=5)
    [folder] = temporary.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    del files
    gc.collect()
    for _ in range(2):
        assert sorted(labels(loader)) == list(range(10))
    loader.close()
    del loader
    gc.collect()
    assert os.listdir(temporary) == []


def test_copies_that_tensorflow_reads_stay(tmp_path, temporary):
    path = put(tmp_path / "a", numbers(0, 10), "GZIP")
    dataset = FileSet(path).tf_dataset(batch_size=5)
    gc.collect()
    for _ in range(2):
        assert sorted(labels(dataset.as_numpy_iterator())) == list(range(10))


READ = """
import sys
from cachecd_client import FileSet
files = FileSet(sys.argv[2])
loader = files.numpy(batch_size=10)
print(sum(int(batch["label"].sum()) for batch in loader), len(files._located), flush=True)
"""


def test_the_interpreters_end_removes_them(tmp_path, environment):
    path = put(tmp_path / "a", numbers(0, 10), "GZIP")
    ended = python(READ, "", path, environment=environment)
    output, errors = ended.communicate(timeout=60)
    assert (output.split(), errors) == (["45", "1"], "")
    assert os.listdir(environment["TMPDIR"]) == []


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path, environment):
    path = put(tmp_path / "a", numbers(0, 1000), "GZIP")
    killed = python(KILLED_BEYOND + READ, 1000, path, environment=environment)
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGXFSZ
    [left] = os.listdir(environment["TMPDIR"])
    assert os.path.getsize(f"{environment['TMPDIR']}/{left}/1.tfrecord") == 1000
    reader = python(READ, "", path, environment=environment)
    assert reader.communicate(timeout=60) == ("499500 1\n", "")
    assert os.listdir(environment["TMPDIR"]) == []


def test_what_a_living_process_uses_is_not_swept(temporary, in_child):
    (temporary / "cachecd-inflated-file").touch()  # no directory: not ours
    scratch = Scratch()
    others = [Scratch() for _ in range(3)]
    assert os.path.isdir(scratch.path)
    assert len({scratch.path, *(other.path for other in others)}) == 4
    # A child may use it, lets its end pass, and removes nothing of its parent's.
    assert in_child(lambda: (scratch.remove(), os.path.isdir(scratch.path))[1])
    scratch.remove()
    scratch.remove()
    assert not os.path.exists(scratch.path)


def test_a_forked_child_reads_the_copies_and_leaves_them(tmp_path, temporary, in_child):
    files = FileSet(put(tmp_path / "a", numbers(0, 10), "GZIP"))
    assert files.num_records == 10
    before = os.listdir(temporary)
    assert in_child(lambda: sorted(labels(files.numpy(batch_size=5)))) == list(range(10))
    assert os.listdir(temporary) == before
    assert sorted(labels(files.numpy(batch_size=5))) == list(range(10))


def test_a_pickled_set_reads_the_copies_while_they_are_there_and_then_its_own(tmp_path, temporary):
    files = FileSet(put(tmp_path / "a", numbers(0, 10), "GZIP"))
    assert files.num_records == 10
    pickled = pickle.dumps(files)
    copy = pickle.loads(pickled)
    assert sorted(labels(copy.numpy(batch_size=5))) == list(range(10))
    assert len(os.listdir(temporary)) == 1
    del files
    gc.collect()
    assert os.listdir(temporary) == []
    assert sorted(labels(copy.numpy(batch_size=5))) == list(range(10))
    assert len(os.listdir(temporary)) == 1


def test_copies_that_somebody_removed_are_an_error_that_says_so(tmp_path, temporary):
    path = put(tmp_path / "a", numbers(0, 10), "GZIP")
    files = FileSet(path)
    loader = files.numpy(batch_size=5)
    shutil.rmtree(*temporary.iterdir())
    with pytest.raises(WorldError, match=r"the inflated copy of .*/a, .* removed by somebody"):
        next(iter(loader))
    assert sorted(labels(files.numpy(batch_size=5))) == list(range(10))


def test_a_loader_whose_copy_is_gone_says_so_though_its_set_has_new_ones(tmp_path, temporary):
    files = FileSet([put(tmp_path / f"{i}", numbers(5 * i, 5), "GZIP") for i in range(2)])
    older = files.numpy(batch_size=5)
    [folder] = temporary.iterdir()
    os.unlink(folder / "1.tfrecord")
    newer = files.numpy(batch_size=5)
    assert sorted(labels(newer)) == list(range(10))
    with pytest.raises(WorldError, match="removed by somebody: make the loader anew"):
        next(iter(older))


def test_threads_that_ask_at_once_share_one_search_and_its_copies(tmp_path, temporary):
    paths = [put(tmp_path / f"{i}", numbers(50 * i, 50), "GZIP") for i in range(8)]
    files = FileSet(paths)
    together = threading.Barrier(4)

    def make(_: int) -> Loader:
        together.wait(10)
        return files.numpy(batch_size=100)

    with ThreadPoolExecutor(4) as threads:
        loaders = list(threads.map(make, range(4)))
    gc.collect()
    assert len(os.listdir(temporary)) == 1
    for loader in loaders:
        assert sorted(labels(loader)) == list(range(400))


INTERRUPTED = """
import os, signal, sys
from cachecd_client import FileSet, locating
inflate = locating.inflate
def interrupting(path, compression, write, stopped):
    found = inflate(path, compression, write, stopped)
    os.kill(os.getpid(), signal.SIGINT)
    stopped.wait()
    return found
locating.inflate = interrupting
try:
    FileSet(sys.argv[1]).num_records
except KeyboardInterrupt:
    print(os.listdir(os.environ["TMPDIR"]))
"""


def test_an_interrupted_search_leaves_no_copy(tmp_path, environment):
    path = put(tmp_path / "a", numbers(0, 10), "GZIP")
    interrupted = python(INTERRUPTED, path, environment=environment)
    assert interrupted.communicate(timeout=60) == ("[]\n", "")


def test_what_another_machine_left_in_a_shared_folder_is_not_swept(temporary, monkeypatch):
    made = os.path.basename(Scratch().path)
    name, boot = scratch._machine()
    assert f"-{name}-{boot}-" in made
    left = {
        "other-machine": made.replace(name, "0" * 8).replace(boot, "1" * 8),
        "earlier-boot": made.replace(boot, "1" * 8),
        "other-container": made.replace(name, "0" * 8),
    }
    for folder in left.values():
        (temporary / folder).mkdir()
    Scratch().remove()
    assert os.listdir(temporary) == [left["other-machine"]]


def test_a_disk_too_small_for_the_compressed_file_shows_before_it_is_filled(tmp_path, temporary):
    path = put(tmp_path / "a", numbers(0, 10), "GZIP")
    os.truncate(path, shutil.disk_usage(temporary).free + (1 << 33))  # a hole
    with pytest.raises(NoSpaceError, match=r"TMPDIR.*cache_index=") as caught:
        _ = FileSet(path).num_records
    assert str(temporary) in str(caught.value)
    assert isinstance(caught.value, OSError)
    assert os.listdir(temporary) == []


def test_a_disk_that_fills_up_meanwhile_is_an_error_that_says_what_to_set(tmp_path, temporary):
    paths = [put(tmp_path / f"{i}", numbers(0, 1000), "GZIP") for i in range(3)]
    with files_limited_to(5000), pytest.raises(NoSpaceError, match=r"TMPDIR.*cache_index="):
        _ = FileSet(paths).num_records
    assert os.listdir(temporary) == []
