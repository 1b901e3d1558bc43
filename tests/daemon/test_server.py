"""The control socket replies to requests, drops all other frames, and survives any input."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator

import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cachecd.daemon import server
from cachecd.daemon.server import Answered, Server
from cachecd_client import protocol


class Peer:
    """A server in a thread, and a raw DEALER that talks to it."""

    def __init__(self, endpoint: str) -> None:
        self.asked: list[protocol.Request] = []
        self.late: list[tuple[server.Answer, str]] = []
        self.endpoint = endpoint
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))
        self._thread.start()
        assert self._ready.wait(10)
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(endpoint)

    async def _main(self) -> None:
        self.server = Server(self.endpoint, self._handle)
        self._loop = asyncio.get_running_loop()
        serving = asyncio.ensure_future(self.server.serve())
        self._stop = serving.cancel
        self._ready.set()
        await asyncio.gather(serving, return_exceptions=True)
        self.server.close()

    def _handle(self, request: protocol.Request, answer: server.Answer) -> None:
        self.asked.append(request)
        if isinstance(request, protocol.Released):
            raise RuntimeError("a defect")
        if isinstance(request, protocol.Held):
            self.late.append((answer, request.id))
        else:
            answer(protocol.Done(request.id))

    def answer_late(self) -> None:
        for answer, id in self.late:
            self._loop.call_soon_threadsafe(answer, protocol.Done(id))
        self.late.clear()

    def send(self, *frames: bytes) -> None:
        self.socket.send_multipart([b"", *frames])

    def reply(self) -> protocol.Reply:
        assert self.socket.poll(5000), "no reply"
        return protocol.decode_reply(self.socket.recv_multipart()[1:])

    def ask(self, request: protocol.Request) -> protocol.Reply:
        self.send(*protocol.encode(request))
        return self.reply()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop)
        self._thread.join(10)
        self.socket.close()
        self.context.term()


@pytest.fixture(scope="module")
def peer(tmp_path_factory) -> Iterator[Peer]:
    peer = Peer(f"ipc://{tmp_path_factory.mktemp('socket')}/s.sock")
    yield peer
    peer.close()


@pytest.mark.parametrize(
    "request_",
    [
        protocol.Acquire("a", "train", "job", 3, 1, 2),
        protocol.Acquire(
            "e", "train", "job", 3, 1, 2, "lease", 0.25, "g", [[0, 1, 2]], "ff", 7, 8, 9
        ),
        protocol.ReportCorrupt("c", "train", "0123456789abcdef", 7, 1, 4096, "bad CRC"),
        protocol.Exclude("d", "train", ["a", "b"], False),
        protocol.AskStatus("d"),
    ],
)
def test_each_request_arrives_unchanged_and_gets_a_reply_with_its_id(peer, request_):
    assert peer.ask(request_) == protocol.Done(request_.id)
    assert peer.asked[-1] == request_


def test_another_major_version_gets_one_clear_reply(peer):
    peer.send(b"cachecd/2.0", json.dumps({"type": "Anything", "id": "x"}).encode())
    reply = peer.reply()
    assert isinstance(reply, protocol.Refused)
    assert reply.code == "version"
    assert "speaks 2" in reply.message


def test_a_repeated_request_gets_the_same_reply_and_no_second_effect(peer):
    request = protocol.encode(protocol.Acquire("again", "train", "job", 0))
    before = len(peer.asked)
    for _ in range(3):
        peer.send(*request)
        assert peer.reply() == protocol.Done("again")
    assert len(peer.asked) == before + 1
    # Another question under the same id is another question.
    assert peer.ask(protocol.Acquire("again", "train", "job", 1)) == protocol.Done("again")
    assert len(peer.asked) == before + 2


def test_late_reply_reaches_the_peer_that_repeated_its_request_last(peer):
    request = protocol.encode(protocol.Held("late", "lease", 1))
    before = len(peer.asked)
    peer.send(*request)
    first, peer.socket = peer.socket, peer.context.socket(zmq.DEALER)
    peer.socket.setsockopt(zmq.LINGER, 0)
    peer.socket.connect(peer.endpoint)
    peer.send(*request)
    assert peer.ask(protocol.AskStatus("meanwhile")) == protocol.Done("meanwhile")
    assert peer.asked[before:].count(protocol.Held("late", "lease", 1)) == 1
    peer.answer_late()
    assert peer.reply() == protocol.Done("late")
    assert not first.poll(0)
    first.close()
    peer.send(*request)
    assert peer.reply() == protocol.Done("late")


def test_a_failed_request_is_retried_when_it_is_repeated(peer):
    before = len(peer.asked)
    for _ in range(2):
        assert isinstance(peer.ask(protocol.Released("fails", "lease")), protocol.Refused)
    assert len(peer.asked) == before + 2


def test_a_minor_version_may_add_fields(peer):
    body = {"type": "AskStatus", "id": "x", "verbose": True}
    peer.send(b"cachecd/1.9", json.dumps(body).encode())
    assert peer.reply() == protocol.Done("x")


@pytest.mark.parametrize(
    "body",
    [
        {"type": "Acquire", "id": "x", "dataset": "train", "job": "j", "epoch": "3"},
        {"type": "Acquire", "id": "x", "dataset": "train"},
        {"type": "Acquire", "id": "x", "dataset": 1, "job": "j", "epoch": 0},
        {"type": "Nonsense", "id": "x"},
        {"type": ["Acquire"], "id": "x"},
        {"type": "Acquire", "id": "x", "dataset": "train", "job": "j" * 1025, "epoch": 0},
        {"type": "Acquire", "id": "x", "dataset": "train", "job": "\ud800", "epoch": 0},
        {"type": "Released", "id": "x", "lease": "l", "delivered": float("nan")},
        {"type": "Exclude", "id": "x", "dataset": "train", "keys": ["k" * 20_000], "ahead": False},
        {"id": "x"},
    ],
)
def test_a_request_that_does_not_fit_is_refused_with_the_field(peer, body):
    peer.send(protocol.VERSION_FRAME, json.dumps(body).encode())
    reply = peer.reply()
    assert isinstance(reply, protocol.Refused)
    assert (reply.id, reply.code) == ("x", "bad-request")


def test_a_defect_in_one_request_does_not_end_the_server(peer):
    reply = peer.ask(protocol.Released("r", "lease"))
    assert isinstance(reply, protocol.Refused)
    assert "internal error" in reply.message
    assert peer.ask(protocol.AskStatus("s")) == protocol.Done("s")


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.binary(max_size=200), min_size=1, max_size=5))
def test_random_frames_are_dropped_and_the_next_request_is_answered(peer, frames):
    peer.socket.send_multipart(frames)
    assert peer.ask(protocol.AskStatus("after")) == protocol.Done("after")


def test_a_deeply_nested_body_is_dropped(peer):
    peer.send(protocol.VERSION_FRAME, b"[" * 500_000)
    assert peer.ask(protocol.AskStatus("after")) == protocol.Done("after")


def test_an_oversized_message_is_cut_off_and_others_are_served(peer):
    rude = peer.context.socket(zmq.DEALER)
    rude.setsockopt(zmq.LINGER, 0)
    rude.connect(peer.endpoint)
    rude.send_multipart([b"", protocol.VERSION_FRAME, b"x" * (protocol.MAX_MESSAGE_BYTES + 1)])
    assert peer.ask(protocol.AskStatus("after")) == protocol.Done("after")
    assert not rude.poll(0)
    rude.close()


@pytest.mark.parametrize("key", ["caf\udce9.jpg", "\ud83d", "https://h/x?sig=" + "a" * 8000])
def test_an_object_whose_name_is_not_unicode_or_long_can_be_named(peer, key):
    request = protocol.Exclude("key", "train", [key], True)
    assert peer.ask(request) == protocol.Done("key")
    assert peer.asked[-1] == request


def test_the_oldest_replies_are_forgotten_when_requests_are_long():
    answered = Answered()
    for number in range(9):
        answered.keep(bytes([number]) * (1 << 19), protocol.Done(str(number)))
    assert answered.find(bytes(1 << 19)) is None
    assert answered.find(bytes([8]) * (1 << 19)) == protocol.Done("8")
