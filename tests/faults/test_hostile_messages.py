"""One message of somebody in the socket's group keeps nobody else waiting, and changes nothing for good."""

from __future__ import annotations

import json
import os
import time

import pytest

from cachecd_client.errors import RequestError
from cachecd_client.protocol import Acquire, Done, Released, Reply, ReportCorrupt, Request
from cachecd_client.transport import Transport
from tests.faults.rotating import Rotating

LONGEST = 1.0  # seconds that a trainer may wait for an answer


@pytest.fixture(scope="module")
def rotating(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile") / "d"
    settings = {"objects": 120, "limit": "4MiB"}
    with Rotating.started(folder, {}, lambda rotating: True, settings) as rotating:
        yield rotating


def ask(rotating: Rotating, request: Request) -> Reply:
    began = time.monotonic()
    try:
        return Transport(rotating.daemon.endpoint).ask(request, 10.0)
    finally:
        assert time.monotonic() - began <= LONGEST


def manifest(rotating: Rotating) -> dict:
    path = rotating.daemon.cache / "leases" / f"{rotating.held.lease}.json"
    return json.loads(path.read_bytes())


def test_a_lease_name_that_is_a_path_opens_nothing(rotating):
    os.mkfifo(rotating.daemon.cache.parent / "x.json")
    assert isinstance(ask(rotating, Released("a", "../../x")), Done)
    assert isinstance(ask(rotating, Released("b", "x" * 900)), Done)
    assert rotating.stopped == ""


@pytest.mark.parametrize("place", [2**64 - 1, 2**62, -1])
def test_a_cursor_that_no_manifest_can_name_is_refused_and_later_sets_can_be_read(rotating, place):
    told = manifest(rotating)
    asked = Acquire(
        f"c{place}", "train", f"j{place}", 0, generation=told["generation"], streams=told["streams"],
        place=place,
    )  # fmt: skip
    with pytest.raises(RequestError, match="expected"):
        ask(rotating, asked)
    rotating.turn()
    assert rotating.status()["datasets"]["train"]["passes"] < 1000


def test_a_set_of_ten_million_shards_costs_no_time(rotating):
    asked = Acquire("m", "train", "m", 0, shards=[[0, 1, 10**7]], fingerprint="f", streams=1)
    ask(rotating, asked)


def test_a_reason_with_escapes_reaches_the_log_printable(rotating):
    number = min(rotating.numbers())
    name = manifest(rotating)["generation"]
    ask(rotating, ReportCorrupt("r", "train", name, number, 0, 0, "\x1b[2J\x1b[31mred"))
    said = rotating.daemon.said()
    assert "\\u001b[2J" in said, "as JSON escapes it"
    assert "\x1b" not in said
