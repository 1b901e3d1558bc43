"""What is wrong is said in one line, with the right exit code, and leaves nothing half-made on disk."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import pytest
import structlog

from cachecd.cli import run_command
from cachecd.disk import filesystem
from tests.e2e.daemons import Daemon, run

CALLER, WORLD = 2, 1  # exit codes: the call or the configuration is wrong; the world is


def tree(folder: Path) -> dict[str, Any]:
    """Everything below a folder: its mode and size."""
    found = {}
    for path in sorted(folder.rglob("*")):
        stat = path.lstat()
        size = 0 if path.is_dir() else stat.st_size
        found[str(path.relative_to(folder))] = oct(stat.st_mode), size
    return found


def refused(daemon: Daemon, code: int, **how: Any) -> str:
    """Runs it, which must fail at once; the one line that it said, without its "cachecd: "."""
    daemon.write_config()
    before = tree(daemon.folder)
    done = run(daemon.command(), daemon, **how) if how else daemon.run()
    assert tree(daemon.folder) == before, "something is left on disk"
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert done.returncode == code, line
    assert line.startswith("cachecd: ")
    return line.removeprefix("cachecd: ")


@pytest.mark.parametrize("at_fault", [CALLER, WORLD])
def test_unusable_source_is_refused_with_the_reason(daemon, s3, at_fault):
    """tests/sampler/test_store_failures.py has the reasons."""
    s3.bucket(bucket := f"unusable-{at_fault}")
    environ = s3.environ | ({"AWS_SECRET_ACCESS_KEY": "wrong-secret"} if at_fault == WORLD else {})
    source = {"url": f"s3://{bucket}/trian/", "format": "files"}
    said = refused(daemon({"train": {"source": source}}, environ=environ), at_fault)
    reason = {
        CALLER: f"train.source.url: no objects under s3://{bucket}/trian/",
        WORLD: "the secret key does not belong to the access key",
    }
    assert reason[at_fault] in said
    assert "wrong-secret" not in said


def test_network_file_system_is_refused_for_the_cache(daemon, train, monkeypatch, capsys):
    """No test can count on being allowed to mount one, so the kernel's table of mounts is ours here."""
    served: Daemon = daemon({"train": train()})
    table = served.folder / "mountinfo"
    table.write_text(
        "22 1 254:1 / / rw,relatime - ext4 /dev/root rw\n"
        f"36 22 0:32 / {served.folder} rw,relatime shared:2 - nfs4 server:/export rw\n"
    )
    monkeypatch.setattr(filesystem, "MOUNT_TABLE", table)
    served.write_config()
    before = tree(served.folder)
    assert run_command(["run", str(served.config)]) == WORLD
    structlog.reset_defaults()  # it logs to a stream that ends with this test
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"cachecd: {served.cache} is on the network file system nfs4")
    assert tree(served.folder) == before


def without_privileges() -> None:
    """For a child process: permissions hold for it even if it is root's."""
    for capability in (1, 2):  # DAC_OVERRIDE, DAC_READ_SEARCH; not ours to drop unless we are root
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


def test_cache_directory_that_may_not_be_written_is_refused(daemon, train):
    served: Daemon = daemon({"train": train()})
    served.cache.mkdir(0o500)
    said = refused(served, WORLD, preexec_fn=without_privileges)
    assert said == f"cache.dir {served.cache} cannot be written by uid {os.geteuid()}"


def test_file_in_the_place_of_a_directory_is_refused(daemon, train):
    served: Daemon = daemon({"train": train()})
    for path in (served.cache, served.socket.parent):
        path.write_text("precious")
        assert str(path) in refused(served, WORLD)
        assert path.read_text() == "precious"
        path.unlink()


def test_second_daemon_is_refused_and_hears_who_is_first(daemon, train):
    first: Daemon = daemon({"train": train()}, limit="6MiB").start()
    second: Daemon = daemon({"train": train()}, name="second", limit="6MiB")
    second.document["server"]["endpoint"] = first.endpoint
    who = f"is in use by cachecd pid {first.pid} "
    assert f"socket {first.socket} {who}" in refused(second, WORLD)
    second.document["server"]["endpoint"] = second.endpoint
    second.document["cache"]["dir"] = str(first.cache)
    said = refused(second, WORLD)
    assert f"cache directory {first.cache} {who}" in said
    assert first.endpoint in said
    assert first.status()["daemon"]["pid"] == first.pid
