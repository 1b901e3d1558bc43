"""Two nodes with a part of a source each, and a set that is held out on both."""

from __future__ import annotations

from collections import Counter

from tests.e2e.daemons import file_source
from tests.e2e.reading import keys_of

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
    changes = {0.1: "split was set", 0.3: "split.eval changed from 0.1 to 0.3"}
    for part, change in changes.items():
        served.kill()
        document["split"] = {"eval": part}
        served.start()
        assert f"datasets.train: {change}. " in served.train["held_back"]
        sides = []
        with served.connect() as cache:
            for name in ("train", "train-eval"):
                with cache.acquire(name, timeout=30) as epoch:
                    sides.append(keys_of(epoch))
        assert not set(sides[0]) & set(sides[1])
        assert abs(len(sides[1]) - 250 * part) < 25
