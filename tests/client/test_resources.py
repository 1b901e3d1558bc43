"""Memory and processors that cgroups leave to a process."""

from __future__ import annotations

import os

import pytest

from cachecd_client.resources import memory, processors, window

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


def test_without_cgroups_memory_is_the_machines(tmp_path):
    assert memory(tmp_path) == MACHINE
    assert processors(tmp_path) == len(os.sched_getaffinity(0))


def test_a_quota_counts_as_processors_rounded_up(machine):
    name = "sys/fs/cgroup/a/cpu.max"
    assert processors(machine("0::/a", V2, {name: "50000 100000"})) == 1
    assert processors(machine("0::/a", V2, {name: "max 100000"})) == len(os.sched_getaffinity(0))
