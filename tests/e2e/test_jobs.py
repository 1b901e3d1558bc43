"""Jobs and a daemon whose configuration is loaded again."""

from __future__ import annotations

import os
import signal

from tests.e2e.daemons import file_source, wait_until


def test_a_reload_that_comes_before_the_daemon_is_ready_does_not_end_it(daemon, tmp_path):
    served = daemon({"train": {"source": file_source(tmp_path / "source", {"a": b"a"})}})
    served.write_config()
    served._process = served._launch(())
    wait_until(served.cache.exists, what="it has begun")
    while "ready" not in served.said():
        os.kill(served.pid, signal.SIGHUP)
        assert served._process.poll() is None, served.said()
    assert served.train
