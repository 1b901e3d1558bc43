"""Two nodes with a part of a source each, and a set that is held out on both."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from tests.e2e.daemons import file_source
from tests.e2e.reading import column, keys_of

NODES = 2


def test_nodes_that_share_a_source_have_a_part_each_and_what_is_held_out_is_trained_on_by_none(
    daemon, tmp_path
):
    objects = {f"patient-{number % 30}/{number:03d}": b"%d" % number for number in range(300)}
    source = file_source(tmp_path / "source", objects)
    nodes = [
        {
            "source": source,
            "partition": {"index": index, "count": NODES},
            "split": {"eval": 0.3, "group": "^(patient-[0-9]+)/"},
        }
        for index in range(NODES)
    ]
    # As two nodes would, but in one process: nothing of it is said to the other.
    served = daemon({f"node{index}": node for index, node in enumerate(nodes)}).start()
    names = [f"node{index}{side}" for index in range(NODES) for side in ("", "-eval")]
    served.until_whole(*names)
    keys: dict[str, list[str]] = {}
    with served.connect() as cache:
        for name in names:
            with cache.acquire(name, timeout=30) as epoch:
                assert epoch.pinned == name.endswith("-eval")
                keys[name] = keys_of(epoch)
    every = Counter(key for name in names for key in keys[name])
    assert every == Counter(list(objects))
    patients = [
        {
            key.split("/")[0]
            for name in names
            if name.endswith("-eval") == held
            for key in keys[name]
        }
        for held in (False, True)
    ]
    assert not patients[0] & patients[1]
    assert all(keys.values())


def test_after_a_split_is_added_or_raised_no_record_that_is_held_out_is_trained_on(
    daemon, tmp_path
):
    objects = {f"{number:03d}": b"%d" % number for number in range(250)}
    document = {"source": file_source(tmp_path / "source", objects)}
    served = daemon({"train": document}).start()
    served.until_whole()
    for part in (0.1, 0.3):
        served.kill()
        document["split"] = {"eval": part}
        served.start()
        assert "split was changed" in served.train["held_back"]
        sides = []
        with served.connect() as cache:
            for name in ("train", "train-eval"):
                with cache.acquire(name, timeout=30) as epoch:
                    sides.append(keys_of(epoch))
        assert not set(sides[0]) & set(sides[1])
        assert abs(len(sides[1]) - 250 * part) < 25


def test_a_split_that_leaves_a_side_nothing_is_refused_on_a_filled_cache_too(daemon, tmp_path):
    root = tmp_path / "source"
    document: dict[str, object] = {"source": file_source(root, {"one": b"1"})}
    served = daemon({"train": document}).start()
    served.until_whole()
    assert served.terminate() == 0
    document["split"] = {"eval": 0.3}
    done = served.run()
    assert done.returncode == 2
    assert "of the 1 units of the source, expected some on both sides" in done.stderr
    # While the source does not answer nobody knows: what is cached is no reason to stay down.
    root.rename(tmp_path / "away")
    served.start()
    assert "source not looked at" in served.said()
    assert served.terminate() == 0
    del document["split"]
    served.start()
    with served.connect() as cache, cache.acquire("train", timeout=30) as epoch:
        assert epoch.num_records == 1


@pytest.mark.long
def test_by_unit_one_parquet_file_and_one_array_are_divided_between_training_and_evaluation(
    daemon, tmp_path
):
    tables, arrays = tmp_path / "tables", tmp_path / "arrays"
    tables.mkdir()
    arrays.mkdir()
    rows = pyarrow.table({"number": np.arange(3000)})
    pyarrow.parquet.write_table(rows, tables / "all.parquet", row_group_size=100)
    np.save(arrays / "tokens.npy", np.arange(16 << 20, dtype=np.int32))  # 16 units
    split = {"eval": 0.3, "by": "unit"}
    array = {"window": 1 << 10}
    served = daemon(
        {
            "rows": {"source": {"url": f"file://{tables}", "format": "parquet"}, "split": split},
            "windows": {
                "source": {"url": f"file://{arrays}", "format": "npy", "array": array},
                "split": split,
            },
        },
        limit="512MiB",
        shard_size="2MiB",
    ).start()
    found: dict[str, list[int]] = {}
    for name in ("rows", "rows-eval", "windows", "windows-eval"):
        served.until_whole(name)
        with served.connect() as cache, cache.acquire(name, timeout=30) as epoch:
            (feature,) = {"number", "values", "array"} & set(epoch.schema.names)
            found[name] = [int(np.ravel(row)[0]) for row in column(epoch, feature)]
    assert all(found.values())
    assert sorted(found["rows"] + found["rows-eval"]) == list(range(3000))
    every = list(range(0, 16 << 20, 1 << 10))
    assert sorted(found["windows"] + found["windows-eval"]) == every


def test_exclusion_from_one_side_holds_for_later_splits(daemon, tmp_path):
    objects = {f"{number:03d}": b"%d" % number for number in range(100)}
    document = {"source": file_source(tmp_path / "source", objects)}
    served = daemon({"train": document})

    def leased(held_out: float) -> dict[str, set[str]]:
        """The records that each side leases after a start with this split."""
        document["split"] = {"eval": held_out}
        served.start()
        served.until_whole("train", "train-eval")
        found = {}
        with served.connect() as cache:
            for name in ("train", "train-eval"):
                with cache.acquire(name, timeout=30) as epoch:
                    found[name] = set(keys_of(epoch))
        return found

    raised = leased(0.5)
    served.kill()
    before = leased(0.2)
    moves = min(before["train"] & raised["train-eval"])
    held, other = sorted(before["train-eval"])[:2]
    with served.connect() as cache:
        cache.exclude("train", moves)
        cache.exclude("train", held)  # which the other side has
        cache.exclude("train-eval", other)
    served.kill()
    gone = {moves, held, other}
    assert leased(0.5) == {name: keys - gone for name, keys in raised.items()}
