"""A bad object beside a running daemon: found from its record, taken out for good, and let in again."""

from __future__ import annotations

import json
import os
from pathlib import Path

from cachecd.cli import run_command
from cachecd_client import Epoch
from tests.e2e.daemons import Daemon, file_source, wait_until
from tests.e2e.reading import keys_of

KEYS = [f"{number:02}\u202e\x1b" if number == 13 else f"{number:02}" for number in range(40)]
BAD = KEYS[13]


def place_of(epoch: Epoch, key: str) -> str:
    for batch in epoch.numpy(1, ids=True, shuffle=False, drop_last=False):
        if bytes(batch["key"][0]) == os.fsencode(key):
            return f"{int(batch['_shard'][0])}:{int(batch['_record'][0])}"
    raise AssertionError(f"{key!r} is not in the set")


def test_a_record_leads_to_its_object_which_is_taken_out_for_good_and_let_in_again(
    tmp_path, monkeypatch, capsys
):
    def said(*arguments: str, code: int = 0) -> str:
        assert run_command(arguments) == code
        found = capsys.readouterr()
        return found.err if code else found.out

    source = file_source(tmp_path / "src", {key: key.encode() * 500 for key in KEYS})
    dataset = {"source": source, "grow": {"first": "16KiB"}}
    with Daemon(tmp_path, {"train": dataset}, shard_size="64KiB") as daemon:
        daemon.start()
        monkeypatch.setenv("CACHECD_ENDPOINT", daemon.endpoint)
        daemon.until_whole()
        with daemon.connect() as cache:
            with cache.acquire("train", epoch=0, job="a") as epoch:
                place = place_of(epoch, BAD)
            told = said("where", "train", place)
            assert told == (
                f"file://{tmp_path}/src/13\\u202e\\x1b  bytes 0 to {500 * len(BAD.encode())}, "
                "record 0 of it\n"
            )
            found = json.loads(said("where", "train", place, "--json"))
            assert (found["key"], Path(found["url"].removeprefix("file://")).name) == (BAD, BAD)

            assert json.loads(said("exclude", "train", BAD, "--json")) == {
                "dataset": "train", "key": BAD, "units": 1, "shards": 1,
            }  # fmt: skip
            daemon.until_whole()
            aside = daemon.train["set_aside"]
            assert aside["reasons"] == {"excluded by hand": 1}
            with cache.acquire("train", epoch=1, job="a") as epoch:
                assert sorted(keys_of(epoch)) == sorted(set(KEYS) - {BAD})
            assert cache.exclude("train", BAD) == (1, 0), "once more is no other"

        daemon.kill()
        daemon.document["datasets"]["train"]["generation"] = 2
        daemon.start()
        daemon.until_whole()
        with daemon.connect() as cache, cache.acquire("train", epoch=2, job="a") as epoch:
            assert epoch.lease
            assert sorted(keys_of(epoch)) == sorted(set(KEYS) - {BAD})

        daemon.kill()
        (daemon.cache / "excluded.jsonl").write_text("")
        daemon.start()
        wait_until(lambda: daemon.train["records"] == len(KEYS))

        why = "the listing of train has no unit of the object '99'; it has 40 units"
        assert why in said("exclude", "train", "99", code=2)
        shard = int(min(p.stem for p in (daemon.cache / "shards" / "train").glob("*.tfrecord")))
        where = ["where", "--dir", str(daemon.cache), "train"]
        assert "records, from 0 on" in said(*where, f"{shard}:9999", code=2)
        assert "there is no such shard" in said(*where, "9999:1", code=2)
        assert "expected SHARD:RECORD" in said(*where, "../1:1", code=2)
        assert "expected the name of a dataset" in said(*where[:3], "../train", "1:1", code=2)
