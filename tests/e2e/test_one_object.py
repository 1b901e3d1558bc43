"""A bad object beside a running daemon: found from its record, taken out for good, and let in again."""

from __future__ import annotations

import json
import os
from pathlib import Path

from cachecd.cli import run_command
from cachecd_client import Epoch
from tests.e2e.daemons import Daemon, file_source, wait_until
from tests.e2e.reading import column, keys_of
from tests.sampler.test_webdataset import archive

KEYS = [f"{number:02}\u202e\x1b" if number == 13 else f"{number:02}" for number in range(40)]
BAD = KEYS[13]


def place_of(epoch: Epoch, key: str) -> str:
    for batch in epoch.numpy(1, ids=True, shuffle=False, drop_last=False):
        if bytes(batch["key"][0]) == os.fsencode(key):
            number, record = int(batch["_shard"][0]), int(batch["_record"][0])
            return f"{number}:{record}"
    raise AssertionError(f"{key!r} is not in the set")


def test_a_record_leads_to_its_object_which_is_taken_out_for_good_and_let_in_again(
    tmp_path, monkeypatch, capsys
):
    def said(*arguments: str, code: int = 0) -> str:
        assert run_command(arguments) == code
        found = capsys.readouterr()
        return found.err if code == 2 else found.out

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
                    f"file://{tmp_path}/src/13\\u202e\\x1b  unit from byte 0, record 0 of the unit\n"
                )
                found = json.loads(said("where", "train", place, "--json"))
                name = Path(found["url"].removeprefix("file://")).name
                assert (found["key"], name) == (BAD, BAD)
                assert "1 shards may hold" in said("erased", "train", BAD, code=1)

                document = json.loads(said("exclude", "train", BAD, "--json"))
                assert document == {"dataset": "train", "keys": [BAD], "samples": []}
                wait_until(lambda: not daemon.train["quarantined_shards"], what="it is copied")
                said("erased", "train", BAD, code=1)  # the lease keeps its shards
            with cache.acquire("train", epoch=1, job="a") as epoch:
                assert sorted(keys_of(epoch)) == sorted(set(KEYS) - {BAD})
                wait_until(
                    lambda: run_command(["erased", "train", BAD]) == 0, what="no copy is left"
                )
            cache.exclude("train", BAD)  # once more is no other

        daemon.kill()
        daemon.document["datasets"]["train"]["generation"] = 2
        daemon.start()
        daemon.until_whole()
        with daemon.connect() as cache, cache.acquire("train", epoch=2, job="a") as epoch:
            assert epoch.lease
            assert sorted(keys_of(epoch)) == sorted(set(KEYS) - {BAD})

        daemon.kill()
        (daemon.cache / "excluded.jsonl").write_text("")
        daemon.document["datasets"]["train"]["generation"] = 3
        daemon.start()
        daemon.until_whole()
        assert daemon.train["records"] == len(KEYS)


def test_samples_of_a_tar_are_taken_out_for_good(tmp_path, monkeypatch, capsys):
    def said(*arguments: str, code: int = 0) -> str:
        assert run_command(arguments) == code
        found = capsys.readouterr()
        return found.err if "no sample" in found.err else found.out

    names = [f"{n:02}" for n in range(20)] + ["caf\u00e9", "not utf-8 \udce9"]
    tar = archive([(f"{name}.bin", name.encode(errors="replace") * 500) for name in names], "gnu")
    bodies = {"0.tar": tar, "1.tar": tar}
    dataset = {"source": {**file_source(tmp_path / "src", bodies), "format": "webdataset"}}
    bad = ["--sample", "07", "--sample", "caf\u00e9", "--sample", "not utf-8 \udce9"]
    left = sorted([*names[:7], *names[8:20], *names])

    def delivered(epoch: Epoch) -> list[str]:
        return sorted(os.fsdecode(bytes(key)) for key in column(epoch, "__key__"))

    with Daemon(tmp_path, {"train": dataset}, shard_size="64KiB") as daemon:
        daemon.start()
        monkeypatch.setenv("CACHECD_ENDPOINT", daemon.endpoint)
        daemon.until_whole()
        with daemon.connect() as cache, cache.acquire("train", epoch=0, job="a") as epoch:
            assert delivered(epoch) == sorted([*names, *names])
            unknown = said("exclude", "train", "0.tar", "--sample", "007", code=1)
            assert "no sample of '0.tar' in the shards has the key '007'" in unknown
            assert "as '00', '01', '02'" in unknown
            told = said("exclude", "train", "0.tar", *bad)
            assert "0.tar: caf\u00e9 excluded from train: no later lease has a record of it" in told
            said("erased", "train", "0.tar", *bad, code=1)  # the lease keeps its shards
            said("exclude", "train", "0.tar", "--sample", "not utf-8 \\xe9")  # as status shows it
        daemon.kill()
        daemon.start()
        daemon.until_whole()
        with daemon.connect() as cache, cache.acquire("train", epoch=1, job="a") as epoch:
            assert delivered(epoch) == left
        wait_until(lambda: run_command(["erased", "train", "0.tar", *bad]) == 0, what="erased")
        said("erased", "train", "1.tar", *bad, code=1)

        daemon.kill()
        daemon.document["datasets"]["train"]["generation"] = 2
        daemon.start()
        daemon.until_whole()
        with daemon.connect() as cache, cache.acquire("train", epoch=2, job="a") as epoch:
            assert delivered(epoch) == left
