"""Starts with a mistake in the configuration: they are said, lose nothing, and no record comes twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cachecd.cli.checked_files import check_all, take_inventory
from tests.e2e.daemons import Daemon, file_source, wait_until
from tests.e2e.reading import column

RECORDS = 300


def files(root: Path, records: int = RECORDS, content: bytes = b"first") -> Path:
    objects = {f"class-{n % 3}/{n:03d}": content + b" %d" % n for n in range(records)}
    file_source(root, objects)
    return root


def dataset(root: Path, **keys: Any) -> dict[str, Any]:
    source = {"url": f"file://{root}", "format": "files", "label": {"pattern": r"^class-(\d)/"}}
    return {"source": source, **keys}


def start_and_list(served: Daemon) -> None:
    before = served.said().count("source listed")
    served.start()
    wait_until(lambda: served.said().count("source listed") > before, what="it is listed")


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


def mistaken_url(document: dict[str, Any], tmp_path: Path) -> None:
    document["source"]["url"] = f"file://{files(tmp_path / 'another', 90, b'another')}"


def no_such_folder(document: dict[str, Any], tmp_path: Path) -> None:
    document["source"]["url"] = f"file://{tmp_path / 'sourec'}"


def mistaken_pattern(document: dict[str, Any], tmp_path: Path) -> None:
    document["source"]["label"]["pattern"] = r"^class-\d/(\d)"


@pytest.mark.parametrize(
    "mistake",
    [
        mistaken_url,
        *(pytest.param(f, marks=pytest.mark.long) for f in (no_such_folder, mistaken_pattern)),
    ],
)
def test_after_a_mistaken_start_every_record_is_there_once_and_none_is_fetched_again(
    daemon, tmp_path, mistake
):
    root = files(tmp_path / "source")
    served = daemon({"train": dataset(root)}).start()
    served.until_whole()
    every = keys(served)
    assert set(every.values()) == {1}
    assert len(every) == RECORDS
    before = generations(served)
    served.kill()
    mistake(served.document["datasets"]["train"], tmp_path)
    served.start()
    wait_until(lambda: served.train["listed"] or served.train["stopped"], what="the mistake shows")
    if mistake is not no_such_folder:
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


def test_mostly_rewritten_source_is_refused_until_the_generation_changes(daemon, tmp_path):
    root = files(tmp_path / "source")
    served = daemon({"train": dataset(root)}).start()
    served.until_whole()
    every = keys(served, feature="payload")
    before = served.train["generation"]
    served.kill()
    files(root, 140, b"second")
    start_and_list(served)
    assert served.train["stopped"] == "", "fewer than half"
    assert served.train["rewritten_units"] == 140

    served.kill()
    files(root, 200, b"third")
    served.start()
    wait_until(lambda: served.train["stopped"], what="the start refuses it")
    assert "more than half of the 300 units" in served.train["stopped"]
    assert "generation: 2" in served.train["stopped"]
    assert keys(served, feature="payload") == every, "what is cached is served"
    assert generations(served) == {before}
    served.kill()
    served.document["datasets"]["train"]["generation"] = 2
    start_and_list(served)
    served.until_whole()
    assert served.train["generation"] != before
    now = keys(served, feature="payload")
    assert set(now.values()) == {1}
    assert len(now) == RECORDS
    assert sum(payload.startswith(b"third") for payload in now) == 200
    served.kill()
    start_and_list(served)  # and it is not refused again
    assert served.train["stopped"] == ""
