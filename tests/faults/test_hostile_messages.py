"""One message of somebody in the socket's group keeps nobody else waiting, and changes nothing for good."""

from __future__ import annotations

import base64
import json
import os
import time
import zlib
from pathlib import Path

import pytest

from cachecd_client.errors import RequestError, SetGoneError
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
    bomb = base64.b64encode(zlib.compress(bytes(400_000_000), 9)).decode()
    told, new = manifest(rotating), max(rotating.numbers()) + 1000
    request = Recall("z", "train", told["generation"], [[1, new]], 10, [f"{new} 1 1 1 {bomb}"])
    with pytest.raises(RequestError, match="more than 4096 units"):
        ask(rotating, request)


@pytest.mark.parametrize("known", [False, True])
def test_many_recipes_of_as_many_units_as_there_can_be_keep_nobody_waiting(rotating, known):
    """Of shards that are here already, or that are new."""
    units = base64.b64encode(zlib.compress(bytes(5 * 8 << 12), 9)).decode()
    told = manifest(rotating)
    first = min(rotating.numbers()) if known else max(rotating.numbers()) + 1000
    recipes = [f"{number} 1 1 1 {units}" for number in range(first, first + 200)]
    request = Recall("q", "train", told["generation"], [[1, first + 200]], 10, recipes)
    with pytest.raises(SetGoneError):
        ask(rotating, request)


def test_a_recall_of_numbers_that_no_run_over_the_source_comes_to_holds_nothing_back(rotating):
    told = manifest(rotating)
    request = Recall("h", "train", told["generation"], [[10**9, 10**9]], 10, [])
    with pytest.raises(RequestError, match="expected at most"):
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
