"""Memory and processors that cgroups leave to a process."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

from cachecd_client.resources import memory, processors, window
from tests.core.processes import run_program

GiB = 1 << 30
MiB = 1 << 20
MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
V2 = "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"


def v1(top="/", controllers="memory"):
    folder = "/sys/fs/cgroup/memory" if controllers == "memory" else "/sys/fs/cgroup/cpu"
    return f"31 24 0:27 {top} {folder} rw shared:9 - cgroup cgroup rw,{controllers}"


@pytest.fixture
def machine(tmp_path):
    def make(cgroup, mounts, files):
        content = {"proc/self/cgroup": cgroup, "proc/self/mountinfo": mounts} | files
        for name, text in content.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
        return tmp_path

    return make


def test_the_least_limit_of_all_ancestors_counts(machine):
    root = machine(
        "0::/pods/pod/app",
        V2,
        {
            "sys/fs/cgroup/pods/pod/app/memory.max": "max",
            "sys/fs/cgroup/pods/pod/memory.max": str(64 * MiB),
            "sys/fs/cgroup/pods/memory.max": str(128 * MiB),
        },
    )
    assert memory(root) == 64 * MiB
    assert window(root) == 32 * MiB


def test_a_v1_limit_counts_and_a_huge_one_is_none(machine):
    inner = "sys/fs/cgroup/memory/job/memory.limit_in_bytes"
    outer = "sys/fs/cgroup/memory/memory.limit_in_bytes"
    huge = str(2**63 - 4096)
    cgroup = "4:memory:/job\n1:cpu,cpuacct:/\n0::/"
    assert memory(machine(cgroup, v1(), {inner: str(MiB), outer: huge})) == MiB
    assert memory(machine(cgroup, v1(), {inner: huge})) == MACHINE


def test_a_container_that_sees_its_own_cgroup_as_the_first_is_limited_by_it(machine):
    files = {"sys/fs/cgroup/memory/memory.limit_in_bytes": str(MiB)}
    assert memory(machine("4:memory:/docker/a", v1("/docker/a"), files)) == MiB
    assert memory(machine("4:memory:/other/b", v1("/docker/a"), files)) == MiB


def test_a_limit_above_what_a_container_sees_counts_where_v1_names_it(machine):
    stat = f"cache 4096\nhierarchical_memory_limit {MiB}\nhierarchical_memsw_limit {2**63 - 4096}"
    folder = "sys/fs/cgroup/memory/"
    files = {folder + "memory.limit_in_bytes": str(GiB), folder + "memory.stat": stat}
    assert memory(machine("4:memory:/pod/a", v1("/pod/a"), files)) == MiB


def test_without_cgroups_memory_is_the_machines(tmp_path):
    assert memory(tmp_path) == MACHINE
    assert processors(tmp_path) == len(os.sched_getaffinity(0))


def test_a_quota_counts_as_processors_rounded_up(machine):
    name = "sys/fs/cgroup/a/cpu.max"
    assert processors(machine("0::/a", V2, {name: "50000 100000"})) == 1
    assert processors(machine("0::/a", V2, {name: "max 100000"})) == len(os.sched_getaffinity(0))


def _cgroup(limit: int) -> Path | None:
    """A real cgroup with this limit of memory, below this process's; None where none can be made."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, names, path = line.split(":", 2)
        if "memory" in names.split(","):
            top, file = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"
        elif number == "0" and not names:
            top, file = Path("/sys/fs/cgroup"), "memory.max"
        else:
            continue
        folder = top / path.lstrip("/") / f"cachecd-{uuid.uuid4().hex}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            (folder / file).write_text(str(limit))
            return folder
        except OSError:
            folder.rmdir()
    return None


def test_a_real_cgroups_limit_is_the_memory_of_a_process_in_a_cgroup_within_it():
    folder = _cgroup(256 * MiB)
    if folder is None:
        pytest.skip("no cgroup with a memory limit can be made here: recorded trees stand for it")
    # Its own child, which has no limit, as a step of a job.
    inner = folder / "step"
    inner.mkdir()
    enter = f"open({str(inner / 'cgroup.procs')!r}, 'w').write('0')"
    code = f"{enter}; from cachecd_client.resources import memory; print(memory())"
    try:
        said = run_program(code).stdout
    finally:
        inner.rmdir()
        folder.rmdir()
    assert int(said) == 256 * MiB
