"""No sampler, and nothing that one has started, outlives a daemon that is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.daemons import Daemon, alive, descendants, file_source, wait_until


@pytest.fixture
def source(tmp_path: Path) -> dict[str, object]:
    return file_source(tmp_path / "src", {f"{number}.bin": bytes(1000) for number in range(40)})


class Busy:
    """A daemon whose samplers are in a transform that never ends."""

    def __init__(self, folder: Path, source: dict[str, object], transform: str) -> None:
        self._children = folder / "children"
        dataset = {"source": source, "transform": [f"tests.sampler.steps:{transform}"]}
        environ = {"CHILD_FILE": str(self._children)}
        self.daemon = Daemon(folder / "d", {"train": dataset}, environ, sampler={"workers": 1})
        self.daemon.folder.mkdir()
        self.daemon.start()
        wait_until(lambda: self._children.exists() and self._children.read_text(), 60.0)
        self.processes = {
            *map(int, self._children.read_text().split()),
            *descendants(self.daemon.pid),
        }
        assert self.processes

    def gone(self) -> bool:
        return not any(map(alive, self.processes))

    def close(self) -> None:
        self.daemon.__exit__()
        for pid in filter(alive, self.processes):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def busy(
    tmp_path: Path, source: dict[str, object], request: pytest.FixtureRequest
) -> Iterator[Busy]:
    busy = Busy(tmp_path, source, request.param)
    yield busy
    busy.close()


@pytest.mark.parametrize("busy", ["hold_everything", "fork_and_wait"], indirect=True)
def test_killed_while_samplers_hang_it_leaves_no_process(busy: Busy):
    os.kill(busy.daemon.pid, signal.SIGKILL)
    wait_until(busy.gone, 20.0, f"none is left of {busy.processes}")
