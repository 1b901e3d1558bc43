"""Where the daemon listens when it was told nothing is where a trainer looks for it."""

from __future__ import annotations

import pytest

from cachecd.config import ServerConfig
from cachecd_client import connect
from cachecd_client.errors import DaemonUnreachableError


@pytest.mark.parametrize("runtime_directory", ["", "/nonexistent/run/user/1000"])
def test_daemon_and_trainer_agree_on_the_default_socket(monkeypatch, runtime_directory):
    monkeypatch.delenv("CACHECD_ENDPOINT", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime_directory)
    with pytest.raises(DaemonUnreachableError) as caught:
        connect(timeout=0.01)
    assert ServerConfig().endpoint.removeprefix("ipc://") in str(caught.value)
