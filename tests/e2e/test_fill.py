"""`cachecd fill`: the cache is filled without a trainer, and `cachecd run` goes on with what is there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

from tests.e2e.daemons import Daemon, file_source, run, wait_until


def fill(served: Daemon, *options: str) -> subprocess.CompletedProcess[str]:
    served.write_config()
    return run([sys.executable, "-m", "cachecd", "fill", str(served.config), *options], served)


def dataset(folder: Any, **keys: Any) -> dict[str, Any]:
    objects = {f"{number:03d}": bytes([number]) * 10_000 for number in range(200)}
    return {"source": file_source(folder, objects), **keys}


def test_sources_that_fit_are_cached_whole_whatever_an_epoch_may_add(daemon, tmp_path):
    grow = {"first": "64KiB", "per_epoch": "64KiB"}
    datasets = {"train": dataset(tmp_path / "train", grow=grow)}
    datasets["val"] = dataset(tmp_path / "val", pin=True)
    served = daemon(datasets, shard_size="64KiB", sampler={"idle": "1s"})
    done = fill(served)
    assert done.returncode == 0, done.stderr
    assert ": every dataset is whole" in done.stderr
    served.start("--offline")
    assert served.train["records"] == served.status()["datasets"]["val"]["records"] == 200
    assert served.terminate() == 0

    # A pinned set that was listed and does not fit is refused at once.
    served.document["cache"]["limit"] = "2MiB"
    done = served.run()
    assert done.returncode == 2, done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith(f"cachecd: {served.config}:")
    assert "cache.limit: found 2097152 bytes" in line
    assert "val: pinned, so all of it must fit)" in line


def test_small_cache_is_filled_to_a_share_then_its_limit(daemon, tmp_path):
    served = daemon({"train": dataset(tmp_path / "source")}, shard_size="64KiB", limit="2MiB")
    done = fill(served, "--until", "60%")
    assert done.returncode == 0, done.stderr
    assert ": filled to 60% of the limit" in done.stderr
    done = fill(served)
    assert done.returncode == 0, done.stderr
    assert ": full" in done.stderr
    assert "records (" in done.stderr, "the log says what an epoch is"
    assert "about a quarter of them are replaced each epoch" in done.stderr
    served.start("--offline")
    assert 0 < served.train["records"] < 200


def test_ctrl_c_ends_a_fill_with_one_line(daemon, tmp_path):
    sampler = {"bandwidth": "20KB/s"}
    served = daemon({"train": dataset(tmp_path / "source")}, shard_size="64KiB", sampler=sampler)
    served.write_config()
    log = tmp_path / "stderr"
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "cachecd", "fill", str(served.config)],
            **{"stderr": file, "env": served.environ, "start_new_session": True},
        )
        try:
            wait_until(lambda: "0 records" in log.read_text(), what="it reports its progress")
            before = log.read_text()
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(30) == 130
        finally:
            process.kill()
            process.wait()
    [line] = log.read_text().removeprefix(before).splitlines()
    assert "stopping" in line
