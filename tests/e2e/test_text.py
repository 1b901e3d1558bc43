"""From JSON Lines in a folder to windows of tokens in a loop, by a real daemon."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from backports import zstd

from cachecd_client.errors import AcquireTimeoutError
from tests.e2e.daemons import Daemon, file_source, wait_until
from tests.small_tokenizer import END, digest, save, windows

WINDOW, STRIDE = 33, 32
TEXTS = {
    name: [f"{name} {n}: the cat sat on {'the mat and ' * (n % 7)}a dog" for n in range(60)]
    for name in ("plain.jsonl", "packed.jsonl.gz", "packed.jsonl.zst")
}


def body(name: str) -> bytes:
    lines = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in TEXTS[name])
    if name.endswith(".gz"):
        return gzip.compress(lines)
    return zstd.compress(lines) if name.endswith(".zst") else lines


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    source = {**file_source(tmp_path / "source", {n: body(n) for n in TEXTS}), "format": "jsonl"}
    pack = {"window": WINDOW, "stride": STRIDE}
    transform = [{"tokenize": {**save(tmp_path), "append": END}}, {"pack": pack}]
    with Daemon(tmp_path, {"train": {"source": source, "transform": transform}}) as made:
        yield made


def delivered(daemon: Daemon, **length: Any) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    with daemon.connect() as cache:
        for epoch in cache.epochs("train", **length):
            for batch in epoch.numpy(1):
                found[batch["tokens"].tobytes()] += 1
    return found


def expected() -> Counter[bytes]:
    return Counter(
        each.tobytes() for texts in TEXTS.values() for each in windows(texts, WINDOW, STRIDE)
    )


def test_each_window_of_each_object_is_delivered_once(daemon: Daemon):
    daemon.start()
    daemon.until_whole()
    assert delivered(daemon, n=1) == expected()
    assert daemon.train["skipped_records"] == 3, "the last window of each object is short"


def test_padding_is_masked_and_reported(daemon: Daemon):
    daemon.document["datasets"]["train"]["transform"][1]["pack"]["remainder"] = "pad"
    daemon.start()
    daemon.until_whole()
    padding = positions = 0
    with daemon.connect() as cache:
        for epoch in cache.epochs("train", 1):
            for batch in epoch.numpy(4, drop_last=False):
                assert not batch["tokens"][~batch["mask"]].any()
                padding += (~batch["mask"]).sum()
                positions += batch["mask"].size
            assert epoch.report()["padding"] == padding / positions > 0
    assert daemon.train["skipped_records"] == 0


def test_a_run_of_tokens_reads_so_many_windows(daemon: Daemon):
    daemon.start()
    daemon.until_whole()
    assert delivered(daemon, tokens=50 * WINDOW).total() == 50


def test_a_daemon_that_was_killed_makes_the_same_windows(daemon: Daemon):
    daemon.document["cache"]["shard_size"] = "64KiB"
    daemon.start()
    wait_until(lambda: daemon.train["shards"])
    daemon.kill()
    daemon.start()
    daemon.until_whole()
    assert delivered(daemon, n=1) == expected()


def test_a_tokenizer_that_changed_stops_the_dataset_and_names_both_hashes(daemon: Daemon):
    file = Path(daemon.document["datasets"]["train"]["transform"][0]["tokenize"]["tokenizer"])
    file.write_text(file.read_text() + "\n")
    daemon.start()
    with (
        daemon.connect() as cache,
        pytest.raises(AcquireTimeoutError, match=f"has sha256 {digest(file)}, expected"),
    ):
        cache.acquire("train", 0, timeout=10.0)
