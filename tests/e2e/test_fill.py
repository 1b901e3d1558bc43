"""`cachecd fill`: the cache is filled without a trainer, and `cachecd run` goes on with what is there."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tests.e2e.daemons import Daemon, file_source, run


def fill(served: Daemon, *options: str) -> subprocess.CompletedProcess[str]:
    served.write_config()
    return run([sys.executable, "-m", "cachecd", "fill", str(served.config), *options], served)


def dataset(folder: Any, **keys: Any) -> dict[str, Any]:
    objects = {f"{number:03d}": bytes([number]) * 10_000 for number in range(200)}
    return {"source": file_source(folder, objects), **keys}


@pytest.mark.long
def test_a_source_that_fits_is_cached_whole_whatever_an_epoch_may_add(daemon, tmp_path):
    grow = {"first": "64KiB", "per_epoch": "64KiB"}
    train = dataset(tmp_path / "source", grow=grow)
    served = daemon({"train": train}, shard_size="64KiB", sampler={"idle": "1s"})
    done = fill(served)
    assert done.returncode == 0, done.stderr
    assert ": every dataset is whole" in done.stderr
    served.start("--offline")
    assert served.train["records"] == 200


@pytest.mark.long
def test_a_share_of_the_limit_is_filled(daemon, tmp_path):
    served = daemon({"train": dataset(tmp_path / "source")}, shard_size="64KiB", limit="4MiB")
    done = fill(served, "--until", "50%")
    assert done.returncode == 0, done.stderr
    assert ": filled to 50% of the limit" in done.stderr
    served.start("--offline")
    cache = served.status()["cache"]
    assert 0.4 < cache["used"] / cache["limit"] < 0.75


def test_a_cache_that_is_smaller_than_its_source_is_filled_to_its_limit(daemon, tmp_path):
    served = daemon({"train": dataset(tmp_path / "source")}, shard_size="64KiB", limit="2MiB")
    done = fill(served)
    assert done.returncode == 0, done.stderr
    assert ": full" in done.stderr
    assert "records (" in done.stderr, "the log says what an epoch is"
    assert "about a quarter of that is replaced each epoch" in done.stderr
    served.start("--offline")
    assert 0 < served.train["records"] < 200


def test_a_share_that_is_none_is_refused(daemon, tmp_path):
    served = daemon({"train": dataset(tmp_path / "source")})
    done = fill(served, "--until", "2GiB")
    assert done.returncode == 2
    assert "expected a share such as 80%" in done.stderr


def test_a_pinned_set_that_was_listed_and_does_not_fit_is_refused_at_once(daemon, tmp_path):
    served = daemon({"val": dataset(tmp_path / "source", pin=True)}, shard_size="64KiB")
    assert fill(served).returncode == 0
    served.document["cache"]["limit"] = "2MiB"
    done = served.run()
    assert done.returncode == 2, done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith(f"cachecd: {served.config}:")
    assert "cache.limit: found 2097152 bytes" in line
    assert "(val: pinned, and has to fit whole)" in line
