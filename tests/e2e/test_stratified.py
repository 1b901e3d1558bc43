"""A real daemon of a source that is sorted by class and has rare ones, with `stratify` and without."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cachecd.cli.status import command as show_status
from cachecd_client._core import Sidecar
from tests.e2e.daemons import Daemon, wait_until
from tests.e2e.reading import by_numpy

COMMON, EACH, RARE = 10, 117, 10  # ten classes of 117 objects, and ten of three
ALL = 1200


@pytest.fixture
def source(tmp_path: Path) -> dict[str, Any]:
    """1200 objects of 1 kB, some 220 of which fill a shard; the classes' names are in their order."""
    root = tmp_path / "source"
    for number in range(COMMON + RARE):
        folder = root / f"{number:02d}"
        folder.mkdir(parents=True)
        for nth in range(EACH if number < COMMON else 3):
            (folder / f"{nth:02d}").write_bytes(b"x" * 1000)
    return {"url": f"file://{root}", "format": "files", "label": {"pattern": "^([0-9]+)/"}}


def train(one: Daemon) -> dict[str, Any]:
    found: dict[str, Any] = one.status()["datasets"]["train"]
    return found


def leased(one: Daemon, epoch: int) -> Counter[int]:
    """How many records of each class an epoch has."""
    with one.connect() as cache, cache.acquire("train", epoch=epoch, job="a", timeout=30) as lease:
        return Counter(label for label, _ in by_numpy(lease).values())


def test_stratified_every_shard_and_the_first_lease_has_all_classes_in_their_shares(daemon, source):
    grow = {"first": "200KiB", "per_epoch": "0B"}
    source["label"]["classes"] = [f"{number:02d}" for number in range(COMMON + RARE)]
    dataset = {"source": source, "stratify": True, "grow": grow}
    one = daemon({"train": dataset}).start()
    first = leased(one, 0)
    total = sum(first.values())
    assert 100 < total < 300
    for number in range(COMMON):
        assert abs(first[number] - total * EACH / ALL) < 2
    assert sum(first[number] for number in range(COMMON, COMMON + RARE)) > 0
    # In one block, though the classes are given and the listing had more than a first block's units.
    (said,) = [line for line in one.said().splitlines() if "units ordered by class" in line]
    assert str(ALL) in said

    one.kill()
    one.document["datasets"]["train"]["grow"] = {"first": "200KiB"}
    one.start()
    wait_until(lambda: train(one)["whole"], what="all is cached")
    assert one.said().count("units ordered by class") == 2  # found again, from the same listing
    every = leased(one, 1)
    assert every == {n: EACH if n < COMMON else 3 for n in range(COMMON + RARE)}
    shards = sorted((one.cache / "shards" / "train").glob("*.idx"))
    assert len(shards) >= 5
    for path in shards[:-1]:
        meta = Sidecar.read(str(path))
        classes = Counter(min(int(u) // EACH, COMMON) for u in meta.units)
        expected = len(meta.units) * EACH / ALL
        assert all(abs(classes[number] - expected) < 2 for number in range(COMMON))
        assert abs(classes[COMMON] - len(meta.units) * 3 * RARE / ALL) < 3


def test_without_it_a_first_lease_that_lacks_classes_is_told_until_one_has_them_all(
    daemon, source, capsys
):
    grow = {"first": "64KiB", "per_epoch": "2MiB"}
    one = daemon({"train": {"source": source, "grow": grow, "seed": 3}}, shard_size="64KiB")
    one.start()
    first = leased(one, 0)
    lacking = [number for number in range(COMMON + RARE) if not first[number]]
    assert 1 < len(lacking) < RARE + 1
    wait_until(lambda: train(one)["missing_classes"], what="it is told")
    assert train(one)["missing_classes"] == {
        "missing": len(lacking),
        "of": COMMON + RARE,
        "examples": [f"{number:02d}" for number in lacking[:5]],
        "units_looked_at": sum(first.values()),
    }
    (said,) = [line for line in one.said().splitlines() if "leased records lack classes" in line]
    assert "raise grow.first, or set stratify: true" in said
    show_status(one.endpoint)
    names = ", ".join(repr(f"{number:02d}") for number in lacking[:5])
    assert (
        f"  the leased records lack {len(lacking)} of {COMMON + RARE} classes: {names}"
        in capsys.readouterr().out
    )

    wait_until(lambda: train(one)["whole"], what="all is cached")
    assert len(leased(one, 1)) == COMMON + RARE
    wait_until(
        lambda: train(one)["missing_classes"] is None, what="it is seen that none is missing"
    )
    assert one.said().count("leased records lack classes") == 1
