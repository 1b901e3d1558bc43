"""Jobs and a daemon whose configuration is loaded again."""

from __future__ import annotations

import os
import signal

import pytest

from tests.e2e.daemons import file_source, wait_until


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
