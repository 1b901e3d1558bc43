"""A real daemon whose store goes away, also over a restart, and comes back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests import scripted
from tests.e2e.daemons import Daemon, wait_until
from tests.e2e.inventory import inventory, repeated
from tests.e2e.reading import by_numpy
from tests.scripted import ScriptedServer, scripted_server

ACCESS, SECRET, TOKEN = (
    "AKIAIOSFODNN7EXAMPLE",
    "wJalrXUtnFEMIbPxRfiCYEXAMPLEKEY",
    "FwoGZXIvYXdzEBYa1",
)
LISTING = "/b?list-type=2&prefix=train%2F&max-keys=1000&encoding-type=url"
DISABLED = scripted.refusal(403, "AllAccessDisabled", f"{SECRET} {TOKEN}")


@pytest.fixture
def objects() -> dict[str, bytes]:
    chance = random.Random(7)
    return {f"class-{n % 3}/{n:03d}": chance.randbytes(8000) for n in range(300)}


@pytest.fixture
def store(objects: dict[str, bytes]) -> Iterator[ScriptedServer]:
    """These objects, for whoever asks; `down` while it answers nothing."""
    with scripted_server() as server:
        listed = "".join(
            f"<Contents><Key>train/{quote(key)}</Key><Size>{len(body)}</Size>"
            "<ETag>&quot;tag&quot;</ETag></Contents>"
            for key, body in objects.items()
        )
        page = f"<ListBucketResult><Name>b</Name>{listed}</ListBucketResult>".encode()
        server.script[LISTING] = [scripted.body(page)]
        for key, body in objects.items():
            server.script[f"/b/train/{key}"] = [scripted.body(body)]
        yield server


@pytest.fixture
def served(store: ScriptedServer, tmp_path: Path) -> Iterator[Daemon]:
    environ = {
        "AWS_ACCESS_KEY_ID": ACCESS,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_SESSION_TOKEN": TOKEN,
        "AWS_ENDPOINT_URL": store.endpoint,
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    source = {"url": "s3://b/train/", "format": "files", "label": {"pattern": r"^class-(\d+)/"}}
    grow = {"first": "256KiB", "per_epoch": "256KiB"}
    with Daemon(
        tmp_path, {"train": {"source": source, "grow": grow}}, environ, sampler={"workers": 2}
    ) as daemon:
        yield daemon


def read(daemon: Daemon, epoch: int, objects: dict[str, bytes]) -> int:
    """Reads an epoch to its end, and compares every record; how many there were."""
    with daemon.connect() as cache, cache.acquire("train", epoch, job="job", timeout=30) as held:
        records = by_numpy(held)
    for key, (label, payload) in records.items():
        assert payload == objects[key.decode()]
        assert label == int(key.decode()[len("class-")])
    return len(records)


def test_a_source_that_goes_away_stops_ingest_alone_and_what_it_comes_back_with_is_fetched(
    served: Daemon, store: ScriptedServer, objects: dict[str, bytes]
):
    served.start()
    first = read(served, 0, objects)
    wait_until(lambda: served.train["shards"] > 1 and not served.train["making"])

    store.down = DISABLED
    second = read(served, 1, objects)  # lets ingest go on, which finds nobody there
    assert second >= first
    wait_until(lambda: served.train["stopped"], what="status tells that ingest has stopped")
    found = served.train
    assert "all access to the bucket has been disabled" in found["stopped"]
    assert found["skipped"]["units"] == 0
    assert read(served, 2, objects) >= second  # training goes on
    wait_until(lambda: served.train["stopped_for_s"] > 0)

    # Killed while it is away: its successor serves what is there, at once.
    served.kill()
    served.start()
    third = read(served, 3, objects)
    assert third >= second
    wait_until(lambda: served.train["stopped"], what="the successor finds nobody there either")
    wait_until(lambda: "source not listed" in served.said(), what="nor does it list anything")
    assert served.train["skipped"]["units"] == 0

    store.down = None
    wait_until(lambda: read(served, 4 + len(store.asked), objects) > third, what="it grows again")
    wait_until(lambda: not served.train["stopped"], what="status has forgotten it")
    assert served.train["skipped"]["units"] == 0
    assert not repeated(inventory(served.cache))

    said = served.said()
    assert "the source of train fails" in said
    assert "Traceback" not in said
    for secret in (SECRET, TOKEN, "Signature="):
        assert secret not in said
