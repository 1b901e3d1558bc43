"""Reads the memory and the processors that the cgroups of this process allow."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

# The maximum number of files that a set maps at once. A process may have 65,530 mappings
# (vm.max_map_count), but a trainer maps the current and the next set, and several datasets for a mixture.
_MAPPED = 16_384
_LEAST = "hierarchical_memory_limit "
_NONE = 1 << 60  # a number near 2**63 means "no limit" in cgroup v1


def memory(root: Path = Path("/")) -> int:
    """Returns the bytes of memory that this process may use: the memory of the machine, or the lowest limit
    of its cgroups and their ancestors. `root`: the folder with `proc` and the mounts."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits: list[int] = []
    for folder in _folders("memory", root):
        for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
            limits += _numbers(folder / name)[:1]
        # In version 1, this is the lowest limit of all ancestors, including those a container cannot see.
        stat = _lines(folder / "memory.stat")
        limits += [int(line.split()[1]) for line in stat if line.startswith(_LEAST)]
    return min([machine, *(limit for limit in limits if 0 < limit < _NONE)])


def window(root: Path = Path("/")) -> int:
    """Returns the default shuffle window in bytes: half of the memory."""
    return max(1, memory(root) // 2)


def window_of(size: int, files: int, most: int | None = None) -> int | None:
    """Returns the shuffle window for a set of `size` bytes, or None if the whole set fits. The window has
    at most `most` bytes, by default `window()`, and at most as many files as a process can map."""
    bound = min(window() if most is None else most, max(1, size * _MAPPED // max(1, files)))
    return bound if size > bound else None


def processors(root: Path = Path("/")) -> int:
    """Returns how many processors this process may use, at least 1, by its affinity and the quotas of its
    cgroups."""
    count = len(os.sched_getaffinity(0))
    for folder in _folders("cpu", root):
        quota = _numbers(folder / "cpu.max")  # "max 100000" has one number: no quota
        if len(quota) != 2:
            quota = _numbers(folder / "cpu.cfs_quota_us") + _numbers(folder / "cpu.cfs_period_us")
        if len(quota) == 2 and min(quota) > 0:
            count = min(count, -(-quota[0] // quota[1]))
    return max(1, count)


def _folders(controller: str, root: Path) -> Iterator[Path]:
    """Yields the cgroups that may limit this process, each before its parent."""
    paths = {}
    for line in _lines(root / "proc/self/cgroup"):
        number, names, path = line.split(":", 2)
        if number == "0" and not names:
            paths["cgroup2"] = path
        elif controller in names.split(","):
            paths["cgroup"] = path
    for line in _lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind not in paths or (
            kind == "cgroup" and controller not in options.rpartition(" ")[2].split(",")
        ):
            continue
        top, point = (_unescaped(field) for field in before.split(" ")[3:5])
        mounted = root / point.lstrip("/")
        # A container may have its own cgroup mounted as the root.
        inside = os.path.relpath(paths[kind], top)
        folder = mounted if inside.startswith("..") else mounted / inside
        yield folder
        while folder != mounted:
            folder = folder.parent
            yield folder


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:  # no cgroups here, or no proc
        return []


def _numbers(path: Path) -> list[int]:
    return [
        int(word) for line in _lines(path) for word in line.split() if word.lstrip("-").isdigit()
    ]


def _unescaped(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), field)
