"""A daemon with HTTP: what it serves, what it keeps over restarts, and what may fail."""

from __future__ import annotations

import contextlib
import json
import socket
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.daemons import Daemon, file_source, wait_until


class Watched(Daemon):
    """A daemon with HTTP at a free port."""

    def __init__(self, folder, environ=None):
        objects = {f"{n:03d}": bytes([n]) * 5000 for n in range(100)}
        source = file_source(folder / "src", objects)
        train = {"source": source, "grow": {"first": "256KiB"}}
        super().__init__(folder, {"train": train}, environ)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.document["server"]["http"] = self.address

    def get(self, path):
        with urlopen(f"http://{self.address}{path}", timeout=10) as reply:
            return reply.read()

    def code(self, path):
        with contextlib.suppress(OSError):  # nobody listens yet
            try:
                with urlopen(f"http://{self.address}{path}", timeout=10) as reply:
                    return reply.status
            except HTTPError as error:
                return error.code
        return 0

    def until_answers(self):
        wait_until(lambda: self.code("/healthz") == 200, what="HTTP answers")
        return self

    def times(self):
        """The times of all samples in the ring of seconds."""
        return [
            row[0]
            for run in json.loads(self.get("/history.json"))["seconds"]
            for row in run["rows"]
        ]


@pytest.fixture
def daemon(tmp_path):
    with Watched(tmp_path) as made:
        yield made


def test_running_daemon_serves_its_own_status(daemon):
    daemon.start().until_answers()
    daemon.until_whole()
    wait_until(lambda: daemon.code("/readyz") == 200, what="a set can be leased")
    text = daemon.get("/metrics").decode()
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    assert {s.value for s in samples if s.name == "cachecd_dataset_records"} == {100}
    document = json.loads(daemon.get("/status.json"))
    assert document.keys() == daemon.status().keys()
    assert document["datasets"]["train"]["records"] == 100
    assert b"<title>cachecd</title>" in daemon.get("/")


def test_history_survives_a_restart(daemon):
    daemon.start().until_answers()
    wait_until(lambda: len(daemon.times()) >= 2, what="two samples")
    before = daemon.times()
    assert daemon.terminate() == 0
    daemon.start().until_answers()
    assert daemon.times()[: len(before)] == before
    assert "history damaged" not in daemon.said()


def test_damaged_history_begins_anew_with_one_warning(daemon):
    daemon.cache.mkdir(mode=0o750)
    (daemon.cache / "history").write_bytes(b"not a history")
    daemon.start().until_answers()
    wait_until(daemon.times, what="a sample")
    assert daemon.terminate() == 0
    assert daemon.said().count("history damaged: it begins anew") == 1
    daemon.start().until_answers()
    assert daemon.said().count("history damaged") == 1


def test_history_that_cannot_be_written_stops_nothing(daemon):
    daemon.cache.mkdir(mode=0o750)
    (daemon.cache / "history").mkdir()
    daemon.start().until_answers()
    daemon.until_whole()
    assert daemon.terminate() == 0
    assert "writing the history fails" in daemon.said()


def test_history_counts_towards_the_limit(daemon):
    daemon.start().until_answers()
    daemon.until_whole()
    assert daemon.terminate() == 0
    size = (daemon.cache / "history").stat().st_blocks * 512
    assert 0 < size <= (64 << 20) // 100 + 4096
    assert (daemon.cache / "history").stat().st_mode & 0o777 == 0o640


def test_address_in_use_leaves_the_daemon_without_http(daemon):
    host, port = daemon.address.split(":")
    with socket.create_server((host, int(port))):
        daemon.start().until_whole()
        wait_until(lambda: "HTTP is off" in daemon.said())
    assert f"cannot listen on {daemon.address}: Address already in use" in daemon.said()
    assert daemon.terminate() == 0


def test_missing_extra_leaves_the_daemon_without_http(tmp_path):
    missing = tmp_path / "missing"
    missing.mkdir()
    (missing / "uvicorn.py").write_text("raise ModuleNotFoundError(\"No module named 'uvicorn'\")")
    with Watched(tmp_path) as daemon:
        daemon.environ["PYTHONPATH"] = f"{missing}:{daemon.environ['PYTHONPATH']}"
        daemon.start().until_whole()
        wait_until(lambda: "HTTP is off" in daemon.said())
        assert "pip install 'cachecd[http]'" in daemon.said()
        assert daemon.terminate() == 0


def test_other_address_without_permission_is_a_mistake_in_the_configuration(daemon):
    daemon.document["server"]["http"] = "0.0.0.0:9400"
    ended = daemon.run()
    assert ended.returncode == 2
    assert "server.http: 0.0.0.0:9400 is not a loopback address" in ended.stderr


def test_reload_does_not_change_the_address(daemon):
    daemon.start().until_answers()
    daemon.document["server"]["http"] = None
    daemon.write_config()
    daemon._process.send_signal(1)
    wait_until(lambda: "restart the daemon to change" in daemon.said())
    assert "server.http" in daemon.said()
    assert daemon.code("/healthz") == 200
