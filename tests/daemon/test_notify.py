"""sd_notify against a real datagram socket."""

from __future__ import annotations

import socket

import pytest

from cachecd.daemon.notify import ServiceManager


@pytest.fixture
def manager():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.settimeout(5)
        yield bound


def test_every_message_arrives_as_the_manager_expects_it(manager, tmp_path):
    manager.bind(str(tmp_path / "notify"))
    service = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "notify")})
    service.ready()
    service.watchdog()
    service.stopping()
    assert [manager.recv(999) for _ in range(3)] == [
        b"READY=1",
        b"WATCHDOG=1",
        b"STOPPING=1",
    ]
    service.starting("train: 100 of 200\nread")
    first, second = manager.recv(999).decode().split("\n")
    assert int(first.removeprefix("EXTEND_TIMEOUT_USEC=")) >= 60_000_000
    assert second == "STATUS=train: 100 of 200 read"
    service.reloading()
    first, second = manager.recv(999).decode().split("\n")
    assert first == "RELOADING=1"
    assert second.removeprefix("MONOTONIC_USEC=").isdigit()


@pytest.mark.parametrize("address", ["", "vsock:2:1234", "relative"])
def test_without_a_manager_nothing_happens(address):
    service = ServiceManager({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000000"})
    service.ready()
    assert service.watchdog_interval is None


def test_a_missing_or_unresponsive_manager_has_no_effect(manager, tmp_path):
    service = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "notify")})
    service.ready()
    manager.bind(str(tmp_path / "notify"))
    for _ in range(10_000):  # more than the socket buffers: none may block
        service.watchdog()
    assert manager.recv(999) == b"WATCHDOG=1"


@pytest.mark.parametrize(
    ("environ", "interval"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_notified_twice_per_interval(environ, interval):
    assert ServiceManager({"NOTIFY_SOCKET": "/x", **environ}).watchdog_interval == interval
