"""What the disk room does on a file system that is full: `python -m tests.disk.full_disk FOLDER`.

Started in namespaces of its own (unshare -Urm), where any user may mount a tmpfs. It ends with an
AssertionError if a promise is broken.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cachecd.disk import publish
from cachecd.disk.durable import State, read_egress, write_egress, write_state
from cachecd.disk.excluded import ExcludedFile, Exclusion
from cachecd.disk.start import take_inventory
from cachecd.errors import DiskError
from tests.disk.shards import SHAPE, directory, make, tree, write

SIZE, INODES = 4 << 20, 64


def fill(folder: Path) -> Path:
    """Takes every block."""
    ballast = folder / "ballast"
    with open(ballast, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    assert os.statvfs(folder).f_bavail == 0
    return ballast


def take_inodes(folder: Path) -> list[Path]:
    """Takes every inode. On a tmpfs a hard link takes one too."""
    taken = [folder / f"inode-{n}" for n in range(INODES)]
    with contextlib.suppress(OSError):
        for path in taken:
            path.touch()
    assert os.statvfs(folder).f_favail == 0
    return [path for path in taken if path.exists()]


def main(folder: Path) -> None:
    options = f"size={SIZE},nr_inodes={INODES}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", folder], check=True)
    layout = directory(folder)
    make(layout, 0, 1, 3)
    write(layout, 4)
    egress, excluded = folder / "egress.json", ExcludedFile(folder / "excluded.jsonl")
    write_egress(egress, 5)
    ballast = fill(folder)

    # What needs no room works.
    publish.publish(layout, 4)
    publish.mark_bad(layout, 1, 0)
    publish.mark_retired(layout, [0])
    taken = take_inodes(folder)
    with pytest.raises(DiskError, match="No space left"):
        publish.mark_bad(layout, 4, 0)
    found = take_inventory(layout, SHAPE, State(), {(0, 0)})
    assert [(s.number, s.status) for s in found.shards] == [
        *((0, "old"), (1, "damaged")),
        *((3, "live"), (4, "live")),
    ]

    # What needs some is refused, and changes nothing.
    before = tree(layout)
    for refused in (
        lambda: write_egress(egress, 6),
        lambda: write_state(layout.state, State()),
        lambda: excluded.add(Exclusion("x", "train", ("key-3-0",))),
        lambda: publish.copy_without(layout, 3, 0, {b"key-3-0"}),
    ):
        with pytest.raises(DiskError, match="No space left"):
            refused()
    assert read_egress(egress) == 5
    assert not layout.state.exists()
    assert excluded.keys("train") == set()
    assert tree(layout) == before

    # Unlinking makes room, and all of it works.
    publish.unlink(layout, [(0, 0)])
    for path in (ballast, *taken):
        path.unlink()
    write_egress(egress, 6)
    excluded.add(Exclusion("x", "train", ("key-3-0",)))
    publish.copy_without(layout, 3, 0, {b"key-3-0"})
    publish.publish(layout, 3, 1)
    assert ExcludedFile(folder / "excluded.jsonl").keys("train") == {"key-3-0"}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
