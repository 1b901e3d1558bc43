"""Jobs and a daemon whose configuration is loaded again."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter

import pytest

from cachecd_client.errors import AcquireTimeoutError
from tests.e2e.daemons import file_source, wait_until
from tests.e2e.reading import keys_of


def test_a_pinned_dataset_is_leased_only_when_whole_and_then_each_record_once(
    daemon, train, objects
):
    pinned = {key: body for key, body in objects.items() if key.startswith("class-3/")}
    source = {"url": f"{train()['source']['url']}/class-3/", "format": "files"}
    served = daemon(
        {"train": train(), "eval": {"source": source, "pin": True}},
        sampler={"bandwidth": "1500kB/s"},
    ).start()
    size = sum(map(len, pinned.values()))
    with served.connect() as cache:
        waited: list[int] = []
        while True:
            before = cache.status()["datasets"]
            try:
                epoch = cache.acquire("eval", timeout=0)
                break
            except AcquireTimeoutError:
                waited.append(before["eval"]["data_bytes"])
                assert before["train"]["data_bytes"] <= before["train"]["first"] + (1 << 20)
                time.sleep(0.02)
        assert max(waited) > size / 2, "it held most of it, and still would not lease it"
        assert epoch.num_records == len(pinned)
        keys, name = keys_of(epoch), epoch.fingerprint
        assert Counter(keys) == Counter(key.removeprefix("class-3/") for key in pinned)
    served.kill()
    with served.start().connect() as cache, cache.acquire("eval", timeout=30) as epoch:
        assert (keys_of(epoch), epoch.fingerprint) == (keys, name), "also after a restart"


@pytest.mark.long
def test_a_limit_lowered_below_what_is_cached_is_reached_while_a_trainer_goes_on(daemon, train):
    """Which asks for the next set while it holds the last one."""
    served = daemon({"train": train(evict={"refresh": 0.5})}, limit="12MiB").start()
    lowered = 6 << 20

    def used() -> int:
        return served.status()["cache"]["used"]

    wait_until(lambda: used() > lowered + (2 << 20))
    with served.connect(timeout=20) as cache:
        for epoch in cache.epochs("train", 500, timeout=20):
            if not epoch.epoch:
                served.document["cache"]["limit"] = lowered
                served.write_config()
                os.kill(served.pid, signal.SIGHUP)
                wait_until(lambda: served.status()["cache"]["limit"] == lowered)
            elif used() <= lowered:
                break
    assert used() <= lowered


@pytest.mark.long
def test_reload_changes_the_number_of_workers_and_no_record_is_lost(daemon, train):
    served = daemon({"train": train()}, sampler={"workers": 1}).start()
    for workers in (3, 2):
        served.document["sampler"] |= {"workers": workers, "connections": 4 * workers}
        served.write_config()
        os.kill(served.pid, signal.SIGHUP)
        wait_until(lambda: served.status()["sampler"]["alive"] == workers)  # noqa: B023
        assert served.status()["sampler"]["restarts"] == 0
    served.until_whole()
    assert served.train["skipped"]["units"] == 0


def test_a_reload_that_comes_before_the_daemon_is_ready_does_not_end_it(daemon, tmp_path):
    served = daemon({"train": {"source": file_source(tmp_path / "source", {"a": b"a"})}})
    served.write_config()
    served._process = served._launch(())
    wait_until(served.cache.exists, what="it has begun")
    while "ready" not in served.said():
        os.kill(served.pid, signal.SIGHUP)
        assert served._process.poll() is None, served.said()
    assert served.train
