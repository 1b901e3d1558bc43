"""The sampler process: its pipes, and its end."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cachecd.model import Unit
from cachecd.sampler import messages
from cachecd.sampler.messages import Failed, FromStream, OfStreams, Sealed, Setup
from cachecd_client._core import ShardWriter, decode_example
from cachecd_client.schema import Feature, Schema
from tests.contracts.source import read_back
from tests.sampler.streams import one_shard

Process = subprocess.Popen[bytes]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Starts a sampler process on the files of `tmp_path`/src; stderr goes to `tmp_path`/stderr."""
    started: list[Process] = []
    (tmp_path / "src").mkdir()

    def start(**dataset: Any) -> Process:
        with (tmp_path / "stderr").open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "cachecd.sampler"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )
        started.append(process)
        source = {"url": f"file://{tmp_path}/src", "format": "files"}
        send(process, Setup({"train": {"source": source, **dataset}}, 4, None))
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def send(process: Process, *given: Setup | OfStreams) -> None:
    assert process.stdin is not None
    for message in given:
        process.stdin.write(messages.pack(message))
    process.stdin.flush()


def shard(folder: Path, number: int = 1) -> tuple[OfStreams, ...]:
    """Has three units made into a shard."""
    for unit in range(3):
        (folder / "src" / f"{unit}").write_bytes(b"%d" % unit)
    units = [Unit(unit, f"{unit}", 1) for unit in range(3)]
    return one_shard(units, folder / f"{number}.tfrecord", number)


def answer(process: Process) -> FromStream:
    assert process.stdout is not None
    while True:
        message = messages.read(process.stdout)  # type: ignore[arg-type]
        assert message is not None, "the process has ended"
        if isinstance(message, (Sealed, Failed)):
            return message


def test_what_users_print_goes_to_stderr_and_stdin_is_empty(
    start: Callable[..., Process], tmp_path: Path
):
    process = start(transform="tests.sampler.steps:chatty")
    send(process, *shard(tmp_path))
    assert isinstance(answer(process), Sealed)
    for _, _, record in read_back(tmp_path / "1.tfrecord").records:
        assert decode_example(record)["stdin"] == ("bytes", [b""])
    process.communicate()
    printed = (tmp_path / "stderr").read_text().splitlines()
    for line in ("a print", "a write to descriptor 1", "a child's output"):
        assert printed.count(line) == 3


def test_memory_does_not_grow_with_the_size_of_an_object(
    start: Callable[..., Process], tmp_path: Path
):
    writer = ShardWriter(str(tmp_path / "src" / "large"))
    for _ in range(256):
        writer.append(bytes(1 << 20))
    size, _ = writer.finish("{}")
    process = start(source={"url": f"file://{tmp_path}/src", "format": "tfrecord"})
    unit = Unit(0, "large", size)
    schema = Schema((Feature("x", "bytes", "bytes", ()),)).to_json()
    send(process, *one_shard([unit], tmp_path / "1", capacity=300 << 20, schema=schema))
    made = answer(process)
    assert isinstance(made, Sealed)
    assert made.records == 256
    status = Path(f"/proc/{process.pid}/status").read_text()
    [peak] = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")]
    # Beside 95,000 kB of the process: what the lanes have ahead, at most 128 MiB, and a record.
    assert peak < 280 << 10, "kB; the object alone has 262144"


def test_signals_for_the_whole_group_are_left_to_the_daemon(
    start: Callable[..., Process], tmp_path: Path
):
    process = start()
    send(process, *shard(tmp_path))
    answer(process)
    process.send_signal(signal.SIGTERM)
    send(process, *shard(tmp_path, 2))
    assert isinstance(answer(process), Sealed)
