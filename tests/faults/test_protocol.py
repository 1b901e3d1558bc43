"""The control socket with real daemons: other versions, other daemons, and a daemon that comes back."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from cachecd.disk.locks import is_locked
from cachecd_client import connect
from cachecd_client.errors import ProtocolVersionError
from cachecd_client.protocol import VERSION_FRAME
from tests.e2e.daemons import Daemon, ExecutedDaemon, file_source

# What a release of the next major version would begin with.
NEXT = """
import runpy, sys
from cachecd_client import protocol, transport
protocol.MAJOR = transport.MAJOR = 2
protocol.VERSION_FRAME = transport.VERSION_FRAME = b"cachecd/2.0"
"""
CLIENT = """
from cachecd_client import connect
try:
    connect(sys.argv[1], timeout=20)
except Exception as error:
    print(type(error).__name__, error)
"""
DAEMON = """
sys.argv[0] = "cachecd"
runpy.run_module("cachecd", run_name="__main__", alter_sys=True)
"""


class NextDaemon(ExecutedDaemon):
    """A daemon of the next major version."""

    def command(self, *options: str) -> list[str]:
        return [sys.executable, "-c", NEXT + DAEMON, "run", str(self.config), *options]


def dataset(folder: Path, objects: int = 60) -> dict[str, object]:
    chance = random.Random(folder.name)
    bodies = {f"{number:04d}.bin": chance.randbytes(20_000) for number in range(objects)}
    return {"source": file_source(folder / "source", bodies), "grow": {"first": "256KiB"}}


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "one").mkdir()
    return tmp_path / "one"


def test_a_daemon_and_a_client_of_another_major_version_tell_each_other_so(folder):
    datasets = {"train": dataset(folder)}
    with Daemon(folder, datasets, shard_size="128KiB") as old:
        old.start("--offline")
        said = subprocess.run(
            [sys.executable, "-c", NEXT + CLIENT, old.endpoint],
            env=old.environ,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    assert said.startswith("ProtocolVersionError the daemon on ipc://")
    versions = f"speaks {VERSION_FRAME.decode()!r}, this client 'cachecd/2.0'"
    assert f"{versions}: install the same release" in said

    with NextDaemon(folder, datasets, shard_size="128KiB") as new:
        with pytest.raises(ProtocolVersionError, match=r"speaks 'cachecd/2\.0', this client 'cach"):
            new.start("--offline")
        with pytest.raises(ProtocolVersionError, match="install the same release"):
            connect(new.endpoint)


def test_a_client_goes_on_with_another_daemon_on_its_socket_and_gives_the_first_ones_set_back(
    folder, tmp_path
):
    other = tmp_path / "two"
    other.mkdir()
    with (
        Daemon(folder, {"train": dataset(folder)}, shard_size="128KiB") as first,
        Daemon(other, {"train": dataset(other)}, shard_size="128KiB") as second,
    ):
        second.document["server"] = {"endpoint": first.endpoint}
        second.endpoint = first.endpoint
        first.start()
        with first.connect() as cache:
            epochs = cache.epochs("train", 2, job="job", timeout=30)
            one = next(epochs)
            assert {Path(path).parents[4] for path in one.files} == {first.cache}
            manifest = first.cache / "leases" / f"{one.lease}.json"
            assert manifest.exists()
            first.kill()  # its socket stays behind, dead
            assert first.socket.exists()
            second.start()
            two = next(epochs)
            assert {Path(path).parents[4] for path in two.files} == {second.cache}
            assert sum(int(b["_valid"].sum()) for b in two.numpy(8, pad_last=True)) > 0
            with manifest.open("rb") as file:
                assert not is_locked(file.fileno())
            epochs.close()
