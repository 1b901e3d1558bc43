"""A listing on a file system that becomes full: `python -m tests.listing.full_disk FOLDER`.

Started in namespaces of its own, as tests.disk.full_disk. It ends with an AssertionError if a promise is
broken.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cachecd.errors import DiskError
from tests.disk.full_disk import fill
from tests.listing.sources import Source, units


def main(folder: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", folder], check=True)
    path = folder / "listing.sqlite"
    with Source(path) as source:
        source.list(units(0, 1000))
        ballast = fill(folder)
        with pytest.raises(DiskError, match="full"):
            source.list(units(0, 3000))
        assert source.units(range(1000)) == units(0, 1000)
    with Source(path) as source:  # a start on the full disk
        assert (len(source.table), source.table.ends) == (1000, (256, 768, 1000))
        assert source.units(range(1000)) == units(0, 1000)
        with pytest.raises(DiskError, match="full"):
            source.list(units(0, 3000))
        ballast.unlink()
        assert source.list(units(0, 3000)).new == 2000
    with Source(path) as source:
        read = source.units(range(1000)) + source.units(range(1000, 2000))
        assert read + source.units(range(2000, 3000)) == units(0, 3000)
        with pytest.raises(DiskError, match="full"):
            source.list(units(0, 100_000))
        known = len(source.table)
        assert 3000 < known < 100_000
        assert source.table.ends[-1] <= known


if __name__ == "__main__":
    main(Path(sys.argv[1]))
