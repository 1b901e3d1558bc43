"""Sets larger than the shuffle window: what order they are read in, and how much is open meanwhile."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from cachecd_client import FileSet, _core
from cachecd_client._core import BatchReader
from cachecd_client.errors import CorruptSidecarError
from tests.core.shards import FEATURES, flip, labels, write_files

FILES, RECORDS = 30, 40


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    starts = range(0, FILES * RECORDS, RECORDS)
    return write_files(tmp_path_factory.mktemp("window"), [RECORDS] * FILES, starts)


@pytest.fixture(scope="module")
def window(files):
    """Room for nine of the files, so that a block is three."""
    return 9 * max(Path(path).stat().st_size for path, _ in files) + 2


def read(files, **options):
    return labels(BatchReader(files, FEATURES, batch_size=10, **options))


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("seed", [0, 7])
def test_every_record_is_read_once(files, window, shuffle, seed):
    found = read(files, window=window, shuffle=shuffle, seed=seed)
    assert Counter(found) == Counter(range(FILES * RECORDS))
    assert (found == sorted(found)) == (not shuffle)


def test_the_order_is_the_same_whatever_the_threads_and_the_prefetch(files, window):
    first = read(files, window=window, seed=3, threads=1, prefetch_bytes=1)
    assert read(files, window=window, seed=3, threads=4) == first
    assert read(files, window=window, seed=4) != first
    assert read(files, window=window + 10**6, seed=3) != first


def test_a_window_that_holds_the_set_shuffles_it_exactly(files):
    size = sum(Path(path).stat().st_size for path, _ in files)
    assert read(files, window=size, seed=5) == read(files, seed=5)


def test_records_are_read_from_no_more_files_at_a_time_than_the_window_holds(files, window):
    found = read(files, window=window, seed=1)
    first = {
        f: min(i for i, label in enumerate(found) if label // RECORDS == f) for f in range(FILES)
    }
    last = {
        f: max(i for i, label in enumerate(found) if label // RECORDS == f) for f in range(FILES)
    }
    open_at = [sum(first[f] <= i <= last[f] for f in range(FILES)) for i in range(len(found))]
    assert max(open_at) <= 9
    # Two blocks of three are mixed nearly all the time.
    assert sum(open_at) / len(open_at) > 4


def test_files_are_closed_once_the_window_has_passed(files, window):
    reader = BatchReader(files, FEATURES, batch_size=10, window=window, prefetch_bytes=1, threads=1)
    most = 0
    while reader.next() is not None:
        mapped = Path("/proc/self/maps").read_text()
        most = max(most, sum(f" {path}\n" in mapped for path, _ in files))
    # Three blocks of three files, and one more while the order moves on.
    assert 6 <= most <= 12


def copied(files, folder):
    """Copies with sidecars, to be spoilt."""
    for path, _ in files:
        shutil.copy(path, folder)
        shutil.copy(f"{path}.idx", folder)
    return [(str(folder / Path(path).name), None) for path, _ in files]


def test_a_sidecar_that_the_disk_does_not_give_back_costs_no_record(files, window, tmp_path):
    """As without a window; nor does it where records are counted alone."""
    copies = copied(files, tmp_path)
    index = Path(f"{copies[5][0]}.idx")
    index.unlink()
    index.symlink_to("/proc/self/mem")  # of which the first byte is EIO
    for options in ({}, {"window": window}):
        reader = BatchReader(copies, FEATURES, batch_size=10, **options)
        assert Counter(labels(reader)) == Counter(range(FILES * RECORDS))
        assert [why for _, _, why in reader.corrupt] == ["sidecar: Input/output error"]
    assert _core.count_records(copies).tolist() == [RECORDS] * FILES
    with pytest.raises(CorruptSidecarError, match="Input/output error"):
        BatchReader(copies, FEATURES, batch_size=10, window=window, on_corrupt="raise")


def test_relative_paths_mean_the_folder_in_which_the_loader_was_made(files, window, monkeypatch):
    folder = Path(files[0][0]).parent
    monkeypatch.chdir(folder)
    loader = FileSet([Path(path).name for path, _ in files], window=window).numpy(
        10, prefetch_bytes=1, threads=1
    )
    batch = next(iter(loader))
    assert len(batch["label"]) == 10
    monkeypatch.chdir("/")
    assert sum(len(batch["label"]) for batch in loader) == FILES * RECORDS


def test_a_file_that_lost_its_tail_and_its_sidecar_since_it_was_counted_costs_its_records(
    files, window, tmp_path
):
    copies = copied(files, tmp_path)
    # The header, which counts the records, stays whole; the offsets do not.
    # From a sidecar's end: indices, ordinals and the CRC of the offsets follow the last offset.
    flip(tmp_path / "04.idx", -(2 * (4 * RECORDS + 4) + 4 + 8))
    data = (tmp_path / "04").read_bytes()
    (tmp_path / "04").write_bytes(data[: len(data) // 2])
    reader = BatchReader(copies, FEATURES, batch_size=10, window=window)
    found = Counter(labels(reader))
    assert found.total() == FILES * RECORDS
    assert len([label for label in found if label // RECORDS == 4]) in range(18, 21)
    assert {path for path, _, _ in reader.corrupt} == {str(tmp_path / "04")}
