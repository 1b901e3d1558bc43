"""The faulty disk itself: what it is told to refuse is refused, and nothing else."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys

import pytest

from tests.faults.disk import FaultyDisk

OPERATIONS = {
    "create": "os.open(p + 'n', os.O_CREAT | os.O_WRONLY)",
    "open": "os.open(p, os.O_RDONLY)",
    "read": "os.read(os.open(p, os.O_RDONLY), 1)",
    "write": "os.write(os.open(p, os.O_WRONLY), b'x')",
    "sync": "os.fsync(os.open(p, os.O_WRONLY))",
    "rename": "os.rename(p, p + '2')",
    "link": "os.link(p, p + '2')",
    "unlink": "os.unlink(p)",
    "mkdir": "os.mkdir(p + 'd')",
    "truncate": "os.ftruncate(os.open(p, os.O_WRONLY), 1)",
    "allocate": "os.posix_fallocate(os.open(p, os.O_WRONLY), 0, 4096)",
}


@pytest.fixture
def root(tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "file").write_bytes(b"before")
    return tmp_path / "root"


@pytest.fixture
def disk(tmp_path, root):
    return FaultyDisk(tmp_path / "control", root)


def run(disk, root, code):
    program = f"import os\np = {str(root / 'file')!r}\n{code}"
    return subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={**os.environ, **disk.environ},
        capture_output=True,
        text=True,
    )


def test_refused_operations_have_their_errno_and_no_effect(disk, root):
    for operation in OPERATIONS:
        disk.fail(operation, "*/file*", errno.EIO)
    tries = (f"try: {code}\nexcept OSError as e: print(e.errno)" for code in OPERATIONS.values())
    assert run(disk, root, "\n".join(tries)).stdout.split() == [f"{errno.EIO}"] * len(OPERATIONS)
    assert os.listdir(root) == ["file"]
    assert (root / "file").read_bytes() == b"before"


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_process_is_killed_before_or_right_after_an_operation(operation, disk, root):
    for after in (False, True):
        rule = disk.kill(operation, "*/file*", after=after)
        assert run(disk, root, OPERATIONS[operation]).returncode == -signal.SIGKILL
        disk.lift(rule)


def test_only_the_operations_of_a_rule_fail_and_only_as_often_as_it_says(disk, root):
    disk.fail("mkdir", "*/file*", errno.ENOSPC, skip=1, count=1)
    code = (
        "for n in range(3):\n  try: os.mkdir(p + str(n))\n  except OSError as e: print(n, e.errno)"
    )
    assert run(disk, root, code).stdout.split() == ["1", str(errno.ENOSPC)]
    assert disk.hits(0) == 3


def test_a_lifted_rule_holds_no_more_and_what_is_traced_is_in_order(disk, root):
    with disk.failing("unlink", "*", errno.EROFS):
        assert run(disk, root, OPERATIONS["unlink"]).returncode == 1
    disk.trace()
    assert run(disk, root, "os.rename(p, p + '2'); os.unlink(p + '2')").returncode == 0
    file = str(root / "file2")
    assert [(o, p) for _, o, p in disk.traced] == [("rename", file), ("unlink", file)]
