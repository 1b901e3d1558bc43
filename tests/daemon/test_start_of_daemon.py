"""The events that a start reports, their order, and the directory that it opens."""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from cachecd.config import Config
from cachecd.config.identity import classes_rule, directory_name, identity_of
from cachecd.daemon.disk_work import manifest_of
from cachecd.daemon.measurement import weigh_foreign
from cachecd.daemon.start import Start, start
from cachecd.disk import leases, publish
from cachecd.disk.durable import write_figures
from cachecd.disk.filesystem import walk
from cachecd.disk.generation_file import read_generation, write_generation
from cachecd.disk.layout import GenerationLayout, Layout
from cachecd.errors import DamagedError
from cachecd.policy import commands as do
from cachecd.policy import events as ev
from cachecd.policy.policy import Policy
from cachecd.policy.values import Lease
from cachecd_client.protocol import encode_manifest
from tests.daemon.directories import lease
from tests.disk.shards import SHAPE, make, tree
from tests.disk.test_manifest_files import READ_LOCK
from tests.listing.sources import units as objects
from tests.policy.simulated import manifest_length

LIMIT = 16 << 20


def config(root: Path, **dataset: Any) -> Config:
    source = {"url": f"file://{root}/src", "format": "files", **dataset.pop("source", {})}
    return Config.model_validate(
        {
            "version": 1,
            "cache": {"dir": str(root / "cache"), "limit": LIMIT, "shard_size": 1 << 20},
            "datasets": {"train": {"source": source, **dataset}},
        }
    )


def begin(given: Config, units: int = 0) -> Start:
    async def run() -> Start:
        found = await start(given, LIMIT)
        for listing in found.listings.values():
            if units:
                table = listing.table
                page = await listing.run(lambda table=table: table.compare(objects(0, units)))
                await listing.run(lambda table=table, page=page: table.add(page))
                await listing.run(table.finish)
            await listing.close()
        return found

    return asyncio.run(run())


def kinds(found: Start) -> list[str]:
    return [type(event).__name__ for event in found.events]


def directory(found: Start) -> GenerationLayout:
    return found.layout.generation(*found.configured["train"])


def fix_shape(layout: GenerationLayout) -> None:
    known = read_generation(layout.identity)
    assert known is not None
    write_generation(layout.identity, dataclasses.replace(known, shape=SHAPE))


def lease_of(found: Start, **fields: Any) -> Lease:
    name = found.configured["train"].name
    return lease()._replace(
        generation=name, **{"intervals": ((0, 0, 0),), "versions": (), **fields}
    )


def test_corrected_configuration_returns_to_its_directory(tmp_path):
    first = begin(config(tmp_path))
    other = begin(config(tmp_path, source={"match": "*.jpg"}))
    assert other.configured != first.configured
    assert kinds(other).count("GenerationFound") == 2
    found = [e for e in other.events if isinstance(e, ev.GenerationFound)]
    assert found[0].generation == other.configured["train"], "newest first"
    assert begin(config(tmp_path)).configured == first.configured


def test_shards_streams_and_leases_are_found(tmp_path):
    given = config(tmp_path)
    found = begin(given, units=300)
    layout = directory(found)
    fix_shape(layout)
    make(layout, 0, 1, 3)
    make(layout, 0, version=1)
    publish.mark_retired(layout, [(3, 0)])
    (layout.shards / "0000000006.new").write_bytes(b"half")
    held = lease_of(found)
    leases.write_manifest(found.layout, held.id, encode_manifest(manifest_of(held, None)))
    leases.mark(found.layout, held.id, 0)
    again = begin(given)
    assert kinds(again) == [
        *("Configured", "GenerationFound", "Listed", "LeaseFound", "Measured", "Started")
    ]
    generation = again.events[1]
    assert isinstance(generation, ev.GenerationFound)
    assert [(s.number, s.facts.version, s.status) for s in generation.shards] == [
        (0, 1, "live"),
        (1, 0, "live"),
    ]
    assert [version for version, _ in generation.shards[0].elders] == [0], "the lease names it"
    assert [head.next for head in generation.heads] == [2, 1, 0]
    assert again.events[3] == ev.LeaseFound(held, frozenset({0}))
    listed = again.events[2]
    assert isinstance(listed, ev.Listed)
    assert (listed.ends, listed.units, listed.completed) == ((256, 300), 300, 1)
    assert tree(layout) == sorted(
        f"{name}.tfrecord{end}"
        for name in ("0000000000", "0000000000.1", "0000000001")
        for end in ("", ".idx")
    )


def test_damaged_listing_gets_another_directory_for_ever(tmp_path):
    given = config(tmp_path)
    first = begin(given, units=300)
    fix_shape(directory(first))
    directory(first).listing.write_bytes(b"no database at all" * 300)
    second = begin(given)
    assert second.configured["train"].name == first.configured["train"].name + "-2"
    assert not directory(first).listing.exists()
    assert begin(given).configured == second.configured


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("listing.sqlite", ["directory", "fifo", "link"]),
        ("generation.json", ["file", "directory", "fifo", "link"]),
        ("shards", ["file", "fifo", "link"]),
        (".", ["file", "fifo", "link"]),
    ],
)
def test_file_with_the_name_of_a_generation_costs_only_this_generation(tmp_path, name, kinds):
    for kind in kinds:
        given = config(tmp_path / kind)
        first = begin(given, units=300)
        fix_shape(directory(first))
        path = directory(first).root / name
        path.rename(tmp_path / kind / "of-others")
        {
            "file": Path.touch,
            "directory": lambda path: (path / "of-others").mkdir(parents=True),
            "fifo": os.mkfifo,
            "link": lambda path: path.symlink_to("nowhere"),
        }[kind](path)
        second = begin(given)
        assert begin(given).configured == second.configured
        assert second.configured["train"].name == first.configured["train"].name + "-2"


def test_generation_of_other_rules_counts_as_damaged(tmp_path):
    given = config(tmp_path)
    layout = directory(begin(given, units=300))
    fix_shape(layout)
    make(layout, 0, 1)
    known = read_generation(layout.identity)
    words = {name: value for name, value in known.identity.items() if name != "version"}
    assert directory_name(words) != directory_name(known.identity)
    write_generation(layout.identity, dataclasses.replace(known, identity=words))
    layout.root.rename(layout.root.with_name(directory_name(words)))
    [older, new] = [e for e in begin(given).events if isinstance(e, ev.GenerationFound)]
    if older.generation.name != directory_name(words):
        older, new = new, older
    assert "version 1 of the rules, expected 2" in older.damaged
    assert not new.damaged


def test_lost_listing_of_a_generation_with_shards_gets_no_new_numbers(tmp_path):
    given = config(tmp_path)
    first = begin(given, units=300)
    fix_shape(directory(first))
    directory(first).listing.unlink()
    assert begin(given).configured["train"].name.endswith("-2")


def test_damaged_lease_is_removed(tmp_path):
    given = config(tmp_path)
    layout = begin(given).layout
    leases.write_manifest(layout, "a", b"{}")
    begin(given)
    assert not layout.manifest("a").exists()


def test_figures_of_rotation_are_restored_unless_they_are_damaged(tmp_path):
    given = config(tmp_path)
    path = begin(given).layout.rotation("train")
    figures = {"last": 5}
    write_figures(path, figures)
    for expected in (figures, {}):
        [found] = [e for e in begin(given).events if isinstance(e, ev.GenerationFound)]
        assert found.figures == expected
        path.write_bytes(b"cut")


def test_damaged_egress_stops_the_start_only_with_a_limit(tmp_path):
    layout = begin(config(tmp_path)).layout
    layout.egress.write_text("{")
    assert begin(config(tmp_path)).fetched is None
    limited = Config.model_validate(
        {**config(tmp_path).model_dump(), "sampler": {"egress_limit": "1GiB"}}
    )
    with pytest.raises(DamagedError, match=r"egress\.json is damaged: .* or remove the file"):
        begin(limited)
    assert layout.egress.read_text() == "{"
    layout.egress.unlink()
    assert begin(limited).fetched == 0


def test_held_damaged_lease_stops_the_start(tmp_path):
    given = config(tmp_path)
    layout = begin(given).layout
    leases.write_manifest(layout, "a", b"{}")
    fd = os.open(layout.manifest("a"), os.O_RDONLY)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, READ_LOCK)
        with pytest.raises(DamagedError, match="a process holds it"):
            begin(given)
    finally:
        os.close(fd)


def test_open_exclusion_is_searched_by_a_start(tmp_path):
    given = config(tmp_path)
    found = begin(given, units=300)
    fix_shape(directory(found))
    make(directory(found), 3)
    found.work.write(do.WriteExclusion("e1", "train", ("key-3-0",)))
    again = begin(given)
    [holders] = [e for e in again.events if isinstance(e, ev.HoldersFound)]
    assert holders.holders == ((found.configured["train"], 3, 0),)
    assert kinds(again)[-3:] == ["Measured", "HoldersFound", "Started"]


# --- what a configuration means


def name_of(given: Config) -> str:
    return directory_name(identity_of(given.datasets["train"]))


def test_defaults_do_not_enter_the_identity(tmp_path):
    given = config(tmp_path, generation=1, transform=[], source={"options": {}, "skip": None})
    assert name_of(given) == name_of(config(tmp_path))


@pytest.mark.parametrize(
    "change",
    [
        {"generation": 2},
        {"transform": ["my.module:step"]},
        {"transform": ["decode_image"]},
        {"split": {"eval": 0.1}},
        {"partition": {"index": 0, "count": 2}},
        {"source": {"label": {"pattern": "^([^/]+)/"}}},
        {"source": {"match": "*.jpg"}},
        {"source": {"url": "file:///elsewhere"}},
        {"source": {"id": "digits"}},
        {"source": {"join": {"a": "a/*", "b": "b/*"}}},
    ],
)
def test_keys_that_determine_records_are_in_the_identity(tmp_path, change):
    assert name_of(config(tmp_path, **change)) != name_of(config(tmp_path))


@pytest.mark.parametrize(
    "change", [{"seed": 3}, {"streams": 2}, {"grow": {"first": "1MiB"}}, {"limit": "8MiB"}]
)
def test_keys_that_determine_no_record_are_not_in_the_identity(tmp_path, change):
    assert name_of(config(tmp_path, **change)) == name_of(config(tmp_path))


def test_source_id_keeps_the_directory_of_a_moved_bucket(tmp_path):
    there = {"url": "s3://bucket/a/", "endpoint": "https://minio.example"}
    spaced = {"url": "s3://bucket/a b http/c /"}
    for before in (there, {"url": "s3://bucket/a/"}, spaced, there | spaced):
        old = config(tmp_path, source=before).datasets["train"]
        moved = {"url": "gs://other/a/", "id": old.source.identity}
        new = config(tmp_path, source=moved).datasets["train"]
        assert directory_name(identity_of(new)) == directory_name(identity_of(old))
        assert classes_rule(new) == classes_rule(old)
        assert new.source.identity == old.source.identity


def test_class_numbers_depend_on_url_and_label_rule_alone(tmp_path):
    label = {"label": {"pattern": "^([^/]+)/"}}
    plain = classes_rule(config(tmp_path, source=label).datasets["train"])
    other = config(tmp_path, source={**label, "match": "*.jpg"}, generation=3)
    assert classes_rule(other.datasets["train"]) == plain
    other = config(tmp_path, source={"label": {"pattern": "/([^/]+)/"}})
    assert classes_rule(other.datasets["train"]) != plain


def test_unknown_files_are_counted_without_shards(tmp_path):
    given = config(tmp_path)
    layout = directory(begin(given))
    fix_shape(layout)
    make(layout, 0, 1, 3)
    make(layout, 0, version=1)
    publish.mark_bad(layout, 1, 0)
    policy, again = Policy(manifest_length), begin(given)
    for event in again.events:
        policy.handle(event, 0.0)

    def weigh() -> int:
        return asyncio.run(weigh_foreign(again.layout, policy.room.by_id))

    assert weigh() == again.foreign == 0
    (layout.shards / "notes").write_bytes(bytes(10_000))
    (again.layout.root / "others" / "deep").mkdir(parents=True)
    (again.layout.root / "others" / "deep" / "file").write_bytes(bytes(10_000))
    others = sum(walk(again.layout.root / "others")) + sum(walk(layout.shards / "notes"))
    make(layout, 6)  # somebody put it there
    assert weigh() == others + publish.allocated(layout, 6, 0)
    assert begin(given).foreign == others, "the start takes it for a shard"


def test_shards_of_a_generation_without_a_shape_are_counted(tmp_path):
    layout = directory(begin(config(tmp_path)))
    policy, again = Policy(manifest_length), begin(config(tmp_path))
    for event in again.events:
        policy.handle(event, 0.0)
    make(layout, 0, 1)
    weighed = asyncio.run(weigh_foreign(again.layout, policy.room.by_id))
    assert weighed == publish.allocated(layout, 0, 0) + publish.allocated(layout, 1, 0)


def test_unknown_directories_are_not_changed(tmp_path):
    given = config(tmp_path)
    found = begin(given)
    strange = Layout(tmp_path / "cache").dataset("train") / "0123456789abcdef"
    strange.mkdir()
    (strange / "generation.json").write_text("{")
    assert kinds(begin(given)) == kinds(found)
    assert (strange / "generation.json").read_text() == "{"
