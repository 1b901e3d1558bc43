"""A daemon, seen from outside: stages of ingest, pauses, a timeline, and the form of the log."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from cachecd_client.protocol import AskSpans, SpansReply
from cachecd_client.transport import Transport
from tests.e2e.daemons import Daemon, file_source, run, wait_until


def dataset(folder: Any, objects: int = 200, **keys: Any) -> dict[str, Any]:
    bodies = {f"{number:03d}": bytes([number % 256]) * 10_000 for number in range(objects)}
    return {"source": file_source(folder, bodies), **keys}


def trace(served: Daemon, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cachecd", "trace", "--endpoint", served.endpoint, *options]
    return run(command, served)


def test_status_has_the_stages_of_ingest_and_the_pauses(daemon, tmp_path):
    served = daemon({"train": dataset(tmp_path / "source")}, shard_size="64KiB", limit="2MiB")
    served.start()
    served.settle()
    wait_until(lambda: served.status()["cache"]["paused_s"]["room"] >= 1, what="the cache is full")
    stages = served.train["ingest"]
    assert stages["list"]["records"] == 200
    assert stages["sync"]["records"] == stages["fetch"]["records"] > 0
    assert stages["fetch"]["cpu_s"] > 0
    assert stages["sync"]["wall_s"] > 0
    before = served.status()["cache"]["paused_s"]
    assert served.terminate() == 0
    assert before["egress"] == before["idle"] == before["disk"] == 0


def test_slow_link_and_a_bandwidth_are_told_apart(daemon, tmp_path):
    sampler = {"bandwidth": "100KB/s"}
    served = daemon({"train": dataset(tmp_path / "source")}, shard_size="64KiB", sampler=sampler)
    served.start()
    wait_until(lambda: served.status()["cache"]["paused_s"]["bandwidth"] >= 1)
    paused = served.status()["cache"]["paused_s"]
    assert paused["bandwidth"] > 5 * paused["link"]


def test_trace_has_the_daemon_and_its_worker(daemon, tmp_path):
    sampler = {"bandwidth": "200KB/s"}
    served = daemon({"train": dataset(tmp_path / "source")}, shard_size="64KiB", sampler=sampler)
    served.start()
    wait_until(lambda: served.train["records"])
    out = tmp_path / "timeline.json"
    done = trace(served, "--seconds", "0.5", "-o", str(out))
    assert done.returncode == 0, done.stderr
    assert "spans of 2 processes" in done.stdout
    events = json.loads(out.read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert [name.split()[0] for name in names.values()] == ["daemon", "worker"]
    seen = {(names[e["pid"]].split()[0], e["name"]) for e in events if e["ph"] == "X"}
    assert {("daemon", "PublishShard"), ("worker", "fetch"), ("worker", "wait")} <= seen

    done = trace(served, "--seconds", "0.1", "-o", str(tmp_path / "missing" / "t.json"))
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert "cannot write" in line
    assert "No such file or directory: name another file with -o" in line


def test_spans_are_asked_for_any_seconds(daemon, tmp_path):
    served = daemon({"train": dataset(tmp_path / "source", 2)}).start()
    for number, seconds in enumerate((0.0, -1.0, 1e200, 60.0)):
        reply = Transport(served.endpoint).ask(AskSpans(f"{number}", seconds), 10.0)
        assert isinstance(reply, SpansReply)
        assert all(name.startswith(("daemon", "worker")) for name in reply.spans)


@pytest.mark.parametrize("form", ["auto", "json", "text"])
def test_log_has_the_form_of_the_configuration(daemon, tmp_path, form: str):
    served = daemon({"train": dataset(tmp_path / "source", 2)})
    served.document["log"] = form
    served.start()
    assert served.terminate() == 0
    lines = served.said().splitlines()
    if form == "text":
        assert any("[info " in line and " ready " in line for line in lines)
    else:
        logged = [json.loads(line) for line in lines]
        [ready] = [line for line in logged if line["event"] == "ready"]
        assert (ready["level"], ready["endpoint"]) == ("info", served.endpoint)
        assert ready["timestamp"]
