"""The benchmark of what ways of feeding leave of Python: they deliver, and its figures tell them apart."""

from __future__ import annotations

import numpy as np
import pytest

from cachecd_client import FileSet
from tests.bench import gil
from tests.bench.data import CASES, RecordSet, image, write_shards
from tests.bench.feeding import WAYS
from tests.bench.shortform import run


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    found = RecordSet(tmp_path_factory.mktemp("records"), CASES["64kB"], 3.0)
    found.make("tfrecord", write_shards)
    return found


@pytest.mark.parametrize(
    "name", ["torch: a thread that parses in Python, a queue", "torch: torch()"]
)
def test_a_way_delivers_the_images_that_were_written_and_ends(records, name):
    begin = WAYS[name](records)
    for _ in range(2):
        rows = [row for batch in begin() for row in np.asarray(batch["image"])]
        numbers = sorted(int(row.ravel()[:8].copy().view(np.int64)[0]) for row in rows)
        assert len(set(numbers)) == len(numbers) >= records.num_records - 4 * records.batch_size
        first = next(row for row in rows if row.ravel()[:8].copy().view(np.int64)[0] == numbers[0])
        assert np.array_equal(first, image(records.case, numbers[0]))


def test_a_way_that_takes_the_gil_for_each_batch_is_told_by_what_its_loop_gets(records):
    loader = FileSet(records.files).numpy(records.batch_size)

    def greedy():
        value = 0
        for batch in loader:
            for _ in range(300_000):  # about 20 ms of Python for each batch, which lasts 2 ms
                value = (value * 31 + 7) % 1000003
            yield batch

    rate = records.batch_size * records.record_bytes / 0.002
    free = gil.measure(lambda: iter(loader), records, 0.1, rate)
    taken = gil.measure(greedy, records, 0.1, rate)
    assert 10 * taken["paced_mb_s"] < rate / 1e6
    assert taken["paced_mb_s"] < free["paced_mb_s"] <= 1.1 * rate / 1e6
    assert min(free["mb_s"], free["kept"], taken["kept"]) > 0


@pytest.mark.long
def test_all_ways_are_measured(tmp_path):
    found, printed = run(
        "gil", "--data", str(tmp_path / "data"), "--megabytes", "20", "--repeats", "1",
        "--seconds", "0.1", figures=tmp_path / "figures.json",
    )  # fmt: skip
    assert found.keys() == WAYS.keys()
    assert all(figures["mb_s"][0] > 0 for figures in found.values())
    assert "| from_generator |" in printed
