"""Two nodes with a part of a source each, and a set that is held out on both."""

from __future__ import annotations

from collections import Counter

from tests.e2e.daemons import wait_until

NODES = 2


def test_nodes_that_share_a_source_have_a_part_each_and_what_is_held_out_is_trained_on_by_none(
    daemon, tmp_path
):
    root = tmp_path / "source"
    for number in range(300):
        path = root / f"patient-{number % 30}" / f"{number:03d}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d" % number)
    nodes = [
        {
            "source": {"url": f"file://{root}", "format": "files"},
            "partition": {"index": index, "count": NODES},
            "split": {"eval": 0.3, "group": "^(patient-[0-9]+)/"},
        }
        for index in range(NODES)
    ]
    # As two nodes would, but in one process: nothing of it is said to the other.
    served = daemon({f"node{index}": node for index, node in enumerate(nodes)}).start()
    names = [f"node{index}{side}" for index in range(NODES) for side in ("", "-eval")]
    wait_until(lambda: all(served.status()["datasets"][name]["whole"] for name in names))
    keys: dict[str, list[bytes]] = {}
    with served.connect() as cache:
        for name in names:
            with cache.acquire(name, timeout=30) as epoch:
                assert epoch.pinned == name.endswith("-eval")
                batches = epoch.numpy(batch_size=16, drop_last=False)
                keys[name] = [
                    bytes(key)
                    for batch in batches
                    for key, valid in zip(
                        batch["key"], batch.get("_valid", [True] * 16), strict=False
                    )
                    if valid
                ]
    every = Counter(key for name in names for key in keys[name])
    assert every == Counter(
        str(path.relative_to(root)).encode() for path in root.rglob("*") if path.is_file()
    )
    patients = [
        {
            key.split(b"/")[0]
            for name in names
            for key in keys[name]
            if name.endswith("-eval") == held
        }
        for held in (False, True)
    ]
    assert not patients[0] & patients[1]
    assert all(keys.values())


def test_after_a_split_is_added_or_raised_no_record_that_is_held_out_is_trained_on(
    daemon, tmp_path
):
    root = tmp_path / "source"
    root.mkdir()
    for number in range(250):
        (root / f"{number:03d}").write_bytes(b"%d" % number)
    document = {"source": {"url": f"file://{root}", "format": "files"}}
    served = daemon({"train": document}).start()
    wait_until(lambda: served.status()["datasets"]["train"]["whole"])
    for part in (0.1, 0.3):
        served.kill()
        document["split"] = {"eval": part}
        served.start()
        said = served.said().rpartition("ready")[0]
        assert "shards are held back" in said
        assert "the split was changed" in served.status()["datasets"]["train"]["held_back"]
        sides = []
        with served.connect() as cache:
            for name in ("train", "train-eval"):
                with cache.acquire(name, timeout=30) as epoch:
                    batches = epoch.numpy(16, drop_last=False)
                    sides.append([bytes(key) for batch in batches for key in batch["key"]])
        assert not set(sides[0]) & set(sides[1])
        assert abs(len(sides[1]) - 250 * part) < 25
