"""Small files are written completely or not at all. Damaged files are reported."""

from __future__ import annotations

import pytest

from cachecd.disk.durable import Skips, State, read_egress, read_figures, read_state, write_state
from cachecd.disk.excluded import ExcludedFile, Exclusion
from cachecd.disk.snapshot import read_snapshot, write_snapshot
from cachecd.errors import DamagedError
from cachecd.model import Cursor, Lane, ShardFacts

DOG = Exclusion("x1", "train", ("dog/1.jpg", "dog/\udcff.jpg"))
CAT = Exclusion("x2", "val", ("cat/1.jpg",))


def test_state_is_read_back(tmp_path):
    path = tmp_path / "state.json"
    assert read_state(path) == State()
    lanes = (Lane(0, 3, 9, 1 << 63, 5, 2, 77),)
    state = State(((3, Cursor(1, 2, 3, lanes)), (0, Cursor())))
    for n in range(12):
        skips = Skips(f"size {n}, expected 'x\\{n}'", 1, n, (f"key {n} \udcff",))
        state, named = state.with_skips(skips)
        assert named == skips.examples if n < 10 else not named
    [skips] = state.skipped.values()
    assert (skips.reason, skips.units, skips.records) == ("size 0, expected 'x\\0'", 12, 66)
    write_state(path, state)
    assert read_state(path) == state


@pytest.mark.parametrize("text", [b"", b"{}", b'{"version": 1, "fetched": -1}', b"\x00" * 4096])
def test_damaged_small_files_are_named(tmp_path, text):
    path = tmp_path / "f.json"
    path.write_bytes(text)
    for reader in (read_state, read_egress, read_figures):
        with pytest.raises(DamagedError, match=r"f\.json is damaged"):
            reader(path)


# --- excluded.jsonl


def test_exclusions_are_read_back(tmp_path):
    path = tmp_path / "excluded.jsonl"
    file = ExcludedFile(path)
    file.add(DOG)
    file.add(CAT)
    file.add(DOG)
    file.finish("x2")
    for found in (file, ExcludedFile(path)):
        assert found.excluded_from("train").keys() == set(DOG.keys)
        assert found.excluded_from("val") == {"cat/1.jpg": set()}
        assert found.excluded_from("other") == {}
        assert found.unfinished == (DOG,)
    assert len(path.read_bytes().splitlines()) == 3


def test_truncated_exclusion_has_no_effect(tmp_path):
    path = tmp_path / "excluded.jsonl"
    file = ExcludedFile(path)
    file.add(DOG)
    whole = path.read_bytes()
    file.add(CAT)
    for cut in range(len(whole), path.stat().st_size):
        path.write_bytes(path.read_bytes()[:cut])
        again = ExcludedFile(path)
        assert again.unfinished == (DOG,)
        again.add(CAT)
        assert ExcludedFile(path).unfinished == (DOG, CAT)


def test_excluded_samples_add_up_until_their_object_is_excluded(tmp_path):
    path = tmp_path / "excluded.jsonl"
    file, two = ExcludedFile(path), frozenset({"a", "b\\xff"})
    file.add(Exclusion("x1", "train", ("0.tar",), ("a",)))
    file.add(Exclusion("x2", "train", ("0.tar",), ("b\\xff",)))
    for found in (file, ExcludedFile(path)):
        assert found.excluded_from("train") == {"0.tar": two}
        assert found.are_done("train", {"0.tar": two}, ["x1", "x2"])
        assert not found.are_done("train", {"0.tar": two}, ["x1"])
        for more in ({"a", "c"}, ()):
            assert not found.are_done("train", {"0.tar": frozenset(more)}, ["x1", "x2"])
    file.add(Exclusion("x3", "train", ("0.tar",)))
    file.add(Exclusion("x4", "train", ("0.tar",), ("c",)))
    assert ExcludedFile(path).excluded_from("train") == {"0.tar": set()}


# --- the snapshot

FACTS = ShardFacts(1 << 26, 600, 1 << 25, 599, (1 << 64) - 1, 3)
SHARDS = {n: FACTS._replace(digest=FACTS.digest - n, version=n % 3) for n in range(1000)}


def test_damaged_or_foreign_snapshot_is_ignored(tmp_path):
    path = tmp_path / "snapshot"
    write_snapshot(path, SHARDS.items())
    content = path.read_bytes()
    for place in [*range(36), 500, len(content) - 1]:
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert read_snapshot(path) == {}
    for cut in (0, 10, 36, len(content) - 1):
        path.write_bytes(content[:cut])
        assert read_snapshot(path) == {}
