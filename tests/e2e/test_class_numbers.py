"""The numbers of classes, as trainers get them from a daemon."""

from __future__ import annotations

from pathlib import Path

from cachecd_client import Epoch
from tests.e2e.daemons import Daemon, file_source, wait_until
from tests.e2e.reading import rows

LABEL = {"pattern": "^([^/]+)/"}


def labels(epoch: Epoch) -> dict[str, int]:
    return {
        bytes(key).decode().partition("/")[0]: label for key, label in rows(epoch, "key", "label")
    }


def objects(*names: str) -> dict[str, bytes]:
    return {f"{name}/x": name.encode() * 500 for name in names}


def served(folder: Path, *names: str, **label: object) -> Daemon:
    folder.mkdir()
    source = {**file_source(folder / "src", objects(*names)), "label": LABEL | label}
    return Daemon(folder, {"train": {"source": source, "pin": True}}, shard_size="64KiB")


def test_classes_are_numbered_in_order_and_keep_their_numbers(tmp_path):
    """Whole numbers by value. What a later listing finds follows, also over a restart."""
    numbers = [str(n) for n in range(12)]
    with served(tmp_path / "numbers", *numbers) as daemon:
        daemon.start().until_whole()
        with daemon.connect() as cache, cache.acquire("train") as epoch:
            assert labels(epoch) == {n: int(n) for n in numbers}
        daemon.kill()
        file_source(daemon.folder / "src", objects("100", "20"))
        daemon.document["datasets"]["train"]["generation"] = 2
        daemon.start()
        wait_until(lambda: daemon.train["records"] == 14, what="the new classes are cached")
        with daemon.connect() as cache, cache.acquire("train") as epoch:
            assert labels(epoch) == {**{n: int(n) for n in numbers}, "20": 12, "100": 13}
    with served(tmp_path / "text", "10", "9", "a") as daemon:
        daemon.start().until_whole()
        with daemon.connect() as cache, cache.acquire("train") as epoch:
            assert labels(epoch) == {"10": 0, "9": 1, "a": 2}
    with served(tmp_path / "given", "10", "9", classes=["10", "9"]) as daemon:
        daemon.start().until_whole()
        with daemon.connect() as cache, cache.acquire("train") as epoch:
            assert labels(epoch) == {"10": 0, "9": 1}
