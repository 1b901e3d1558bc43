"""A short life of a generation's shards, for tests that kill it or cut its power at every step."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from cachecd.disk import publish
from cachecd.disk.durable import State, read_egress, read_state, write_egress, write_state
from cachecd.disk.excluded import ExcludedFile, Exclusion
from cachecd.disk.inventory import DirectoryInventory, remove_leftovers, take_inventory
from cachecd.disk.layout import GenerationLayout
from cachecd.disk.snapshot import write_snapshot
from tests.disk.shards import SHAPE, contents, cursor, make, write

BEGIN = (0, 1, 3, 4)
STATE = State(((1, cursor(3)), (1, cursor(4)), (0, cursor(0))))


def begin(layout: GenerationLayout) -> None:
    """Four shards, of which number 4 holds a key that is to be excluded; and a fifth that is sealed."""
    make(layout, *BEGIN)
    write(layout, 6)


def live(layout: GenerationLayout, kept: Callable[[str], None] = lambda promise: None) -> None:
    """Publishes 6; quarantines 4, and makes it again; retires 0 and removes it. `kept` is called with each
    promise as soon as it is to be kept for ever."""
    publish.publish(layout, 6)
    kept("6 is live")
    publish.mark_bad(layout, 4, 0)
    kept("4 is not served")
    publish.copy_without(layout, 4, 0, {b"key-4-1": frozenset()})
    publish.publish(layout, 4, 1)
    kept("4 is made again")
    publish.unlink(layout, [(4, 0)])
    publish.mark_retired(layout, [(0, 0)])
    kept("0 is not live")
    write_state(layout.state, STATE)
    kept("the state is written")
    publish.unlink(layout, [(0, 0)])
    kept("0 is gone")
    for fetched in (5, 6):
        write_egress(egress(layout), fetched)
        kept(f"{fetched} bytes were fetched")
    exclusions = ExcludedFile(excluded(layout))
    exclusions.add(Exclusion("x", "train", ("key-4-1",)))
    kept("a key is excluded")
    exclusions.finish("x")
    kept("the exclusion is done")
    rows = [
        shard[:2]
        for shard in take_inventory(layout, SHAPE, STATE, ()).shards
        if shard.status == "live"
    ]
    write_snapshot(layout.snapshot, rows)


def egress(layout: GenerationLayout) -> Path:
    return layout.root / "egress.json"


def excluded(layout: GenerationLayout) -> Path:
    return layout.root / "excluded.jsonl"


def live_in(root: str) -> None:
    live(GenerationLayout(Path(root)))


def start_in(root: str) -> None:
    found = take_inventory(GenerationLayout(Path(root)), SHAPE, State(), ())
    assert {shard.status for shard in found.shards} == {"live"}


def check(layout: GenerationLayout, kept: Collection[str] = ()) -> DirectoryInventory:
    """What a start finds after a life that ended anywhere: no whole shard is lost, none is there twice, and
    all promises are kept. Removing the leftovers changes nothing else."""
    found = take_inventory(layout, SHAPE, State(), (), {"key-4-1": frozenset()})
    shards = {shard.number: shard for shard in found.shards}
    assert len(shards) == len(found.shards)
    status = {number: shard.status for number, shard in shards.items()}
    assert shards.keys() <= {*BEGIN, 6}
    assert (status[1], status[3]) == ("live", "live")
    assert status.get(0, "old") in ("live", "old")
    assert status.get(6, "live") == "live"
    assert (shards[4].facts.version, status[4]) in ((0, "live"), (0, "excluded"), (1, "live"))
    heads = [following for following, _ in found.heads]
    assert heads == [3 if 6 in shards else 2, 2, 0]
    assert found.heads[0][1] == cursor(9 if 6 in shards else 6)
    for number, shard in shards.items():
        read = contents(layout, number, shard.facts.version)
        assert len(read) == (3 if shard.facts.version else 6)
    assert "6 is live" not in kept or 6 in shards
    assert "4 is not served" not in kept or (shards[4].facts.version, status[4]) != (0, "live")
    assert "4 is made again" not in kept or shards[4].facts.version == 1
    assert "0 is not live" not in kept or status.get(0) != "live"
    assert "0 is gone" not in kept or 0 not in shards
    assert read_state(layout.state) in (STATE, *([State()] * ("the state is written" not in kept)))
    least = max(
        (fetched for fetched in (5, 6) if f"{fetched} bytes were fetched" in kept), default=0
    )
    assert least <= read_egress(egress(layout)) <= 6
    exclusions = ExcludedFile(excluded(layout))
    assert "a key is excluded" not in kept or exclusions.excluded_from("train").keys() == {
        "key-4-1"
    }
    assert "the exclusion is done" not in kept or not exclusions.unfinished
    remove_leftovers(layout, found, State())
    again = take_inventory(layout, SHAPE, State(), (), {"key-4-1": frozenset()})
    assert (again.shards, again.heads) == (found.shards, found.heads)
    assert (again.dropped, again.stray) == ((), ())
    return found
