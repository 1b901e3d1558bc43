"""Starts with a mistake in the configuration: they are said, lose nothing, and no record comes twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from cachecd.cli.checked_files import check_all, take_inventory
from tests.e2e.daemons import Daemon, file_source
from tests.e2e.reading import column

RECORDS = 300


def files(root: Path, records: int = RECORDS, content: bytes = b"first") -> Path:
    objects = {f"class-{n % 3}/{n:03d}": content + b" %d" % n for n in range(records)}
    file_source(root, objects)
    return root


def dataset(root: Path, **keys: Any) -> dict[str, Any]:
    source = {"url": f"file://{root}", "format": "files", "label": {"pattern": r"^class-(\d)/"}}
    return {"source": source, **keys}


def keys(served: Daemon, name: str = "train", feature: str = "key") -> Counter[bytes]:
    with served.connect() as cache, cache.acquire(name, timeout=30) as epoch:
        return Counter(map(bytes, column(epoch, feature)))


def fetched(served: Daemon) -> int:
    """Bytes fetched in all, over restarts."""
    found: int = served.status()["cache"]["fetched_bytes"]
    return found


def generations(served: Daemon) -> set[str]:
    return {path.name for path in (served.cache / "datasets" / "train").iterdir() if path.is_dir()}


def verified(served: Daemon) -> None:
    assert [
        fault for each in check_all(take_inventory(served.cache)) for fault in each.faults
    ] == []


def test_after_a_mistaken_start_every_record_is_there_once_and_none_is_fetched_again(
    daemon, tmp_path
):
    root = files(tmp_path / "source")
    served = daemon({"train": dataset(root)}).start()
    served.until_whole()
    every = keys(served)
    assert set(every.values()) == {1}
    assert len(every) == RECORDS
    before = generations(served)
    served.kill()
    mistake = f"file://{files(tmp_path / 'another', 90, b'another')}"
    served.document["datasets"]["train"]["source"]["url"] = mistake
    served.start()
    served.until_whole()
    assert max(keys(served).values()) == 1
    verified(served)
    again = fetched(served)
    served.terminate()
    served.document["datasets"]["train"] = dataset(root)
    served.start()
    served.until_whole()
    assert keys(served) == every
    assert before <= generations(served)
    assert fetched(served) == again, "what was cached is cached"
    verified(served)
