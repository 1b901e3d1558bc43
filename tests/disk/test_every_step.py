"""A life of shards, killed before each operation; cut off from power after each; refused each."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cachecd.disk.layout import GenerationLayout
from tests.disk.lives import begin, check, live
from tests.disk.shards import directory
from tests.faults.disk import FaultyDisk
from tests.faults.victims import Victims


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("steps")
    (folder / "d").mkdir()
    return FaultyDisk(folder / "control", folder / "d")


@pytest.fixture(scope="module")
def victims(disk):
    with Victims(disk, "tests.disk.lives") as victims:
        yield victims


@pytest.fixture
def copies(tmp_path, disk):
    """Any number of directories at the beginning of the life."""
    template = directory(tmp_path)
    begin(template)
    made = []

    def copy(root=disk.root) -> GenerationLayout:
        folder = root / f"{tmp_path.name}-{len(made)}"
        made.append(folder)
        shutil.copytree(template.root, folder)
        return GenerationLayout(folder)

    yield copy
    for folder in made:
        shutil.rmtree(folder)


def test_killed_anywhere_no_whole_shard_is_lost(victims, copies):
    changes = victims.changes("live_in", str(copies().root))
    assert len(changes) > 40
    for index, *_ in changes:
        layout = copies()
        victims.kill_at(index, "live_in", str(layout.root))
        check(layout)


@pytest.mark.parametrize("code", [errno.EIO, pytest.param(errno.ENOSPC, marks=pytest.mark.long)])
def test_refused_anywhere_no_whole_shard_is_lost(victims, copies, code):
    changes = victims.changes("live_in", str(copies().root))
    for index, *_ in changes:
        layout = copies()
        assert victims.fail_at(index, code, "live_in", str(layout.root)) in (0, 1)
        check(layout)


def test_unreadable_disk_is_not_reported_as_damage(disk, victims, copies):
    """A start fails then, because it must not count intact shards as lost."""
    layout = copies()
    for operation in ("read", "open"):
        disk.fail(operation, "*.tfrecord.idx", errno.EIO)
        assert victims.run("start_in", str(layout.root)) == 1
        disk.reset()
    assert victims.run("start_in", str(layout.root)) == 0


class Crash(BaseException):
    """A power failure."""


class Power:
    """The changes that are not synced yet. A power failure loses the writes to files, and may undo the last
    changes of names in a directory."""

    def __init__(self, monkeypatch, folder: Path, steps: int) -> None:
        self.left = steps
        self.undo: list[tuple[str, Callable[[], object]]] = []
        self._synced: dict[int, int] = {}  # sizes of files that were written to, by inode
        self._kept = folder / "kept"
        self._kept.mkdir(parents=True)
        self._real = {
            name: getattr(os, name) for name in ("rename", "unlink", "link", "fsync", "write")
        }
        for name in self._real:
            monkeypatch.setattr(os, name, getattr(self, name))

    def rename(self, old, new) -> None:
        self._step()
        before = self._keep(new) if os.path.lexists(new) else None
        self._real["rename"](old, new)

        def undo() -> None:
            self._real["rename"](new, old)
            if before is not None:
                self._real["link"](before, new)

        self._note(new, undo)

    def unlink(self, path) -> None:
        self._step()
        kept = self._keep(path)
        self._real["unlink"](path)
        self._note(path, lambda: self._real["link"](kept, path))

    def link(self, old, new, **options) -> None:
        self._step()
        self._real["link"](old, new, **options)
        self._note(new, lambda: self._real["unlink"](new))

    def write(self, fd, content) -> int:
        self._step()
        status = os.fstat(fd)
        self._synced.setdefault(status.st_ino, status.st_size)
        return self._real["write"](fd, content)

    def fsync(self, fd) -> None:
        self._step()
        self._real["fsync"](fd)
        path = os.readlink(f"/proc/self/fd/{fd}")
        self._synced.pop(os.fstat(fd).st_ino, None)
        self.undo = [each for each in self.undo if each[0] != path]

    def fail(self, count: int, layout: GenerationLayout) -> None:
        """The power fails: the last `count` changes of names never reached the disk."""
        for _ in range(count):
            self.undo.pop()[1]()
        for path in layout.root.rglob("*"):
            if (size := self._synced.get(path.stat().st_ino)) is not None:
                os.truncate(path, size)

    def _keep(self, path) -> Path:
        kept = self._kept / str(len(os.listdir(self._kept)))
        self._real["link"](path, kept)
        return kept

    def _note(self, path, undo: Callable[[], object]) -> None:
        self.undo.append((os.path.dirname(path), undo))

    def _step(self) -> None:
        if self.left == 0:
            raise Crash
        self.left -= 1


def test_power_failure_anywhere_breaks_no_promise(copies, tmp_path, monkeypatch):
    steps, ended, losses = 0, False, 0
    while not ended:
        lost = pending = 0
        while lost <= pending:  # as many of the last changes as were not synced
            layout, kept = copies(tmp_path), []
            folder = tmp_path / f"power-{steps}-{lost}"
            with monkeypatch.context() as patched:
                power = Power(patched, folder, steps)
                try:
                    live(layout, kept.append)
                    ended = True
                except Crash:
                    pass
                pending = len(power.undo)
                power.fail(lost, layout)
            check(layout, kept)
            lost += 1
            losses += lost > 1
        steps += 1
    assert steps > 20
    assert losses > 20
