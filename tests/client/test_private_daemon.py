"""connect("config.yaml"): the child process, its life and its end.

The child here is a small program under the daemon's name that does what the configuration says, so
that each way to start and to end can be had at will; it is started as the real one is.
"""

import importlib.util
import os
import signal
import tempfile
import time
from pathlib import Path

import pytest

from cachecd_client.errors import CallerError, DaemonUnreachableError
from cachecd_client.session import private_daemon
from cachecd_client.session.cache import connect
from tests.core.processes import in_child

DAEMON = """
import json, os, signal, sys, threading
import zmq
command, config, option, lifeline = sys.argv[1:]
assert (command, option) == ("run", "--lifeline")
with open(config) as file:
    mode = file.read().strip()
with open(config + ".pid", "w") as file:
    print(os.getpid(), file=file)
print("hello from stdout", flush=True)
if mode.startswith("exit"):
    print("reason on stderr", file=sys.stderr)
    sys.exit(int(mode.split()[1]))
if mode == "abort":
    os.kill(os.getpid(), signal.SIGABRT)
def drain(*_):
    with open(config + ".drained", "w"):
        os._exit(0)
signal.signal(signal.SIGTERM, drain)
if mode == "silent":
    signal.pause()
def watch():
    os.read(int(lifeline), 1)
    os._exit(0)
threading.Thread(target=watch, daemon=True).start()
socket = zmq.Context().socket(zmq.ROUTER)
endpoint = os.environ["CACHECD_SERVER__ENDPOINT"]
os.mkdir(os.path.dirname(endpoint.removeprefix("ipc://")), 0o750)
socket.bind(endpoint)
while True:
    if not socket.poll(20):  # a signal may interrupt the other thread alone
        continue
    peer, empty, version, body = socket.recv_multipart()
    reply = {"type": "StatusReply", "id": json.loads(body)["id"], "status": {"pid": os.getpid()}}
    socket.send_multipart([peer, empty, version, json.dumps(reply).encode()])
"""


@pytest.fixture
def runtime(monkeypatch):
    """$XDG_RUNTIME_DIR, short enough for a socket's path, as pytest's own folders may not be."""
    with tempfile.TemporaryDirectory(prefix="run-", dir="/tmp") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)


@pytest.fixture
def config(tmp_path, runtime, monkeypatch):
    package = tmp_path / "program/cachecd"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(DAEMON)
    # `python -m` looks in the current folder first.
    monkeypatch.chdir(package.parent)
    monkeypatch.syspath_prepend(package.parent)

    def write(mode: str = "serve", name: str = "train.yaml") -> Path:
        path = tmp_path / name
        path.write_text(mode)
        return path

    return write


def child_of(config: Path) -> int:
    return int(Path(f"{config}.pid").read_text())


def alive(pid: int) -> bool:
    """Whether the process runs; one that nobody has waited for yet does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("name", ["train.yaml", "train.yml"])
def test_a_configuration_starts_a_daemon_that_ends_with_the_session(config, name, runtime):
    path = config(name=name)
    with connect(path) as cache:
        pid = cache.status()["pid"]
        assert pid == child_of(path)
        (folder,) = runtime.iterdir()
        assert cache.endpoint == f"ipc://{folder}/cachecd.sock"
    assert not alive(pid)
    assert Path(f"{path}.drained").exists()
    assert not list(runtime.iterdir())


def test_a_refused_configuration_is_the_callers_error(config, capfd, runtime):
    with pytest.raises(CallerError, match=r"daemon refused .*train\.yaml \(exit code 2\)"):
        connect(config("exit 2"))
    assert "reason on stderr" in capfd.readouterr().err
    assert not list(runtime.iterdir())


@pytest.mark.parametrize(("mode", "how"), [("exit 1", "with exit code 1"), ("abort", "by SIGABRT")])
def test_a_daemon_that_fails_at_its_start_is_reported_at_once(config, mode, how):
    began = time.monotonic()
    with pytest.raises(DaemonUnreachableError, match=f"ended {how}; the reason is on stderr"):
        connect(config(mode))
    assert time.monotonic() - began < 30  # and not after the 120 s of a slow start


def test_a_daemon_that_never_answers_is_ended(config, runtime):
    path = config("silent")
    with pytest.raises(DaemonUnreachableError, match=r"did not answer within 2 s and was stopped"):
        connect(path, timeout=2)
    assert not alive(child_of(path))
    assert not list(runtime.iterdir())


def test_a_forked_child_that_exits_leaves_the_daemon_alone(config):
    with connect(config()) as cache:
        in_child(cache.close)
        assert alive(cache.status()["pid"])


def test_a_runtime_folder_too_deep_for_a_socket_is_passed_over(config, runtime, monkeypatch):
    deep = runtime / ("x" * 60)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    with connect(config()) as cache:
        assert Path(cache.endpoint.removeprefix("ipc://")).parent.parent == Path("/tmp")


def test_several_ranks_cannot_each_start_one(config, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(CallerError, match="run the launcher under one daemon, cachecd run"):
        connect(config())


def test_a_daemon_that_does_not_drain_is_killed(config, monkeypatch):
    monkeypatch.setattr(private_daemon, "_DRAIN", 0.2)
    cache = connect(config())
    pid = cache.status()["pid"]
    os.kill(pid, signal.SIGSTOP)
    cache.close()
    assert not alive(pid)


def test_a_configuration_that_is_not_there_is_named(tmp_path):
    with pytest.raises(CallerError, match="this configuration file does not exist"):
        connect(tmp_path / "typo.yaml")


def test_the_client_alone_says_what_to_install(config, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CallerError, match="pip install cachecd"):
        connect(config())
