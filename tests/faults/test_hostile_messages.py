"""One message of somebody in the socket's group keeps nobody else waiting, and changes nothing for good."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from cachecd_client.errors import RequestError
from cachecd_client.protocol import (
    Acquire,
    Done,
    Granted,
    Recall,
    Released,
    Reply,
    ReportCorrupt,
    Request,
)
from cachecd_client.transport import Transport
from tests.faults.hostile import LONGEST, attack
from tests.faults.rotating import Rotating


@pytest.fixture(scope="module")
def rotating(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile") / "d"
    settings = {"objects": 120, "limit": "4MiB"}
    with Rotating.started(folder, {}, lambda rotating: True, settings) as rotating:
        yield rotating


def ask(rotating: Rotating, request: Request) -> Reply:
    began = time.monotonic()
    reply = Transport(rotating.daemon.endpoint).ask(request, 10.0)
    assert time.monotonic() - began <= LONGEST
    return reply


def manifest(rotating: Rotating) -> dict:
    import json

    path = rotating.daemon.cache / "leases" / f"{rotating.held.lease}.json"
    return json.loads(path.read_bytes())


def test_a_lease_name_that_is_a_path_opens_nothing(rotating):
    os.mkfifo(rotating.daemon.cache.parent / "x.json")
    assert isinstance(ask(rotating, Released("a", "../../x")), Done)
    assert isinstance(ask(rotating, Released("b", "x" * 900)), Done)
    assert rotating.stopped == ""


@pytest.mark.parametrize("place", [2**64 - 1, 2**62, -1, 1 << 61])
def test_a_cursor_that_no_walk_comes_to_is_refused_and_later_sets_can_be_read(rotating, place):
    told = manifest(rotating)
    asked = Acquire(
        f"c{place}", "train", f"j{place}", 0, generation=told["generation"], walk=told["walk"],
        cursor=[place],
    )  # fmt: skip
    with pytest.raises(RequestError, match="expected"):
        ask(rotating, asked)
    rotating.turn()
    assert rotating.status()["datasets"]["train"]["passes"] < 1000


def test_numbers_that_no_run_over_the_source_comes_to_are_not_taken(rotating):
    asked = Acquire("n", "train", "n", 0, shards=[[10**9, 10**9]], cursor=[0])
    with pytest.raises(RequestError, match="expected"):
        ask(rotating, asked)
    rotating.turn()
    assert max(rotating.numbers()) < 10**6


def test_a_set_of_ten_million_shards_costs_no_time(rotating):
    asked = Acquire("m", "train", "m", 0, shards=[[1, 10_000_000]], fingerprint="f")
    assert not isinstance(ask(rotating, asked), Granted)


def test_a_recipe_that_inflates_without_end_is_refused_at_once(rotating):
    import base64
    import zlib

    bomb = base64.b64encode(zlib.compress(bytes(400_000_000), 9)).decode()
    told = manifest(rotating)
    request = Recall("z", "train", told["generation"], [[1, 9]], 10, [f"1 1 1 1 {bomb}"])
    with pytest.raises(RequestError, match="more than 65536 units"):
        ask(rotating, request)


def test_a_reason_with_escapes_reaches_the_log_printable(rotating):
    number = min(rotating.numbers())
    ask(rotating, ReportCorrupt("r", "train", number, 0, "\x1b[2J\x1b[31mred"))
    said = rotating.daemon.said()
    assert "\\x1b[2J" in said
    assert "\x1b" not in said


def test_messages_of_any_content_keep_trainers_waiting_for_no_second(tmp_path: Path):
    sent, longest = attack(tmp_path / "d", 8, seed=17)
    assert sent > 50
    assert longest <= LONGEST
