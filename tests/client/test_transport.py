"""One request, one reply: over restarts, from daemons of other versions, and from what is none."""

import contextlib
import json
import os
import socket
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachecd_client import protocol, transport
from cachecd_client.errors import (
    CallerError,
    DaemonUnreachableError,
    LeaseLostError,
    ProtocolVersionError,
    RequestError,
    UnknownDatasetError,
)
from cachecd_client.protocol import Acquire, AskStatus, Granted, Refused, StatusReply, Waiting
from cachecd_client.transport import Conversation, Transport
from tests.core.processes import in_child, until


@pytest.fixture
def impatient(monkeypatch):
    """Requests are sent again after 50 ms instead of a second."""
    monkeypatch.setattr(transport, "_FIRST_PATIENCE", 0.05)


def in_thread(scripted):
    replies = []
    way = Transport(scripted.endpoint)
    asking = threading.Thread(target=lambda: replies.append(way.ask(AskStatus("1"), 20)))
    asking.start()
    return asking, replies


@pytest.mark.usefixtures("impatient")
def test_a_request_survives_a_restart_of_the_daemon(daemon):
    scripted = daemon(lambda request: None, polite=False)
    asking, replies = in_thread(scripted)
    until(lambda: scripted.requests)
    scripted.kill()
    scripted.answer = lambda request: StatusReply(request.id, {"restarted": True})
    scripted.start()
    asking.join()
    assert replies == [StatusReply("1", {"restarted": True})]


@pytest.mark.usefixtures("impatient")
def test_a_conversation_goes_on_over_a_restart_and_leaves_no_thread_and_no_file(daemon):
    scripted = daemon()

    def open_now():
        return [len(os.listdir(f"/proc/self/{what}")) for what in ("task", "fd")]

    before = open_now()
    with Conversation(Transport(scripted.endpoint)) as conversation:
        assert [conversation.ask(AskStatus(i), 20).id for i in "12"] == ["1", "2"]
        scripted.kill()
        with pytest.raises(DaemonUnreachableError):
            conversation.ask(AskStatus("3"), 0.1)
        scripted.start()
        assert [conversation.ask(AskStatus(i), 20).id for i in "45"] == ["4", "5"]
        scripted.kill()
        scripted.start()
        assert conversation.ask(AskStatus("6"), 20).id == "6"
        conversation.close()
        assert conversation.ask(AskStatus("7"), 20).id == "7"
        assert open_now() > before
    until(lambda: open_now() == before)


def test_a_forked_child_may_ask(daemon):
    way = Transport(daemon().endpoint)
    way.ask(AskStatus("parent"), 10)
    assert in_child(lambda: way.ask(AskStatus("child"), 10).id) == "child"
    assert way.ask(AskStatus("parent again"), 10).id == "parent again"


def unreachable(path) -> str:
    with pytest.raises(DaemonUnreachableError) as caught:
        Transport(f"ipc://{path}").ask(AskStatus("1"), 0.1)
    assert str(caught.value).startswith(f"no daemon answered on ipc://{path} within 0.1 s: ")
    assert "Start one with `cachecd run CONFIG`" in str(caught.value)
    return str(caught.value)


def test_a_socket_without_an_owner_is_noticed_at_once(tmp_path):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "dead.sock"))
    assert "its daemon has ended" in unreachable(tmp_path / "dead.sock")
    for name in ("dead.sock", "none.sock"):
        with pytest.raises(DaemonUnreachableError, match=r"no daemon answered on .*: the"):
            Transport(f"ipc://{tmp_path / name}").await_owner(0.0)


def test_a_file_in_the_place_of_the_socket_is_told_from_a_dead_daemon(tmp_path):
    (tmp_path / "file").touch()
    assert "the path is not a socket" in unreachable(tmp_path / "file")


def test_a_socket_of_another_group_is_told_from_none(tmp_path):
    """As nobody, for whom the folder is closed."""
    (tmp_path / "closed").mkdir(mode=0)

    def ask() -> str:
        if os.getuid() == 0:
            os.setuid(65534)
        return unreachable(tmp_path / "closed/a.sock")

    assert "permission denied: join the group" in in_child(ask)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("unknown-dataset", UnknownDatasetError),
        ("lease-lost", LeaseLostError),
        ("a code of a later release", RequestError),
    ],
)
def test_a_refusal_raises_the_error_its_code_names(daemon, code, error):
    scripted = daemon(lambda request: Refused(request.id, code, "no, because"))
    with pytest.raises(error, match=r"^no, because$"):
        Transport(scripted.endpoint).ask(AskStatus("1"), 10)


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[" * 500_000,
        b'{"type": "StatusReply", "id": "2", "status": {}}',
        b'{"type": "Done", "id": "1"}',
        b'{"type": "Refused", "id": "1", "code": "version", "message": 7}',
    ],
)
def test_an_answer_that_does_not_fit_is_an_error_at_once(daemon, body):
    scripted = daemon(lambda request: [protocol.VERSION_FRAME, body])
    with pytest.raises(ProtocolVersionError, match="this client cannot read the answer"):
        Transport(scripted.endpoint).ask(AskStatus("1"), 10)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([b"cachecd/2.0", b"{}"], r"speaks 'cachecd/2.0', this client 'cachecd/1"),
        ([b"jupyter", b"{}"], r"is not cachecd \(it sent 'jupyter'\)"),
        (Refused("", "version", "speak 2"), r"^speak 2$"),  # by who could not read the request
    ],
)
def test_a_daemon_of_another_version_or_none_is_told_so(daemon, answer, said):
    with pytest.raises(ProtocolVersionError, match=said):
        Transport(daemon(lambda request: answer).endpoint).ask(AskStatus("1"), 10)


REPLIES = st.fixed_dictionaries(
    {"type": st.sampled_from([*protocol.REPLIES, "Acquire", ""])},
    optional={
        name: st.one_of(st.text(max_size=5), st.integers(), st.floats(), st.none(), st.just({}))
        for name in ("id", "lease", "cache_dir", "manifest", "have_bytes", "status", "code")
    },
)


@settings(max_examples=150, deadline=None)
@given(
    frames=st.lists(st.binary(max_size=30), max_size=3)
    | REPLIES.map(lambda body: [protocol.VERSION_FRAME, json.dumps(body).encode()])
    | st.binary(max_size=60).map(lambda body: [b"cachecd/1.0", body])
    | st.binary(max_size=12).map(lambda version: [b"cachecd/" + version, b"{}"])
)
def test_whatever_answers_it_is_a_reply_that_fits_or_a_clear_error(frames):
    way, request = Transport("ipc:///run/a.sock"), Acquire("1", "train", "job", 0)
    with contextlib.suppress(ProtocolVersionError):
        reply = way.decode(frames, request)
        assert isinstance(reply, (Granted, Waiting, Refused))
        assert reply.id in ("1", "")


def test_an_endless_answer_is_cut_off(daemon):
    answer = [protocol.VERSION_FRAME, b" " * (protocol.MAX_REPLY_BYTES + 1)]
    scripted = daemon(lambda request: answer)
    with pytest.raises(DaemonUnreachableError, match="does not answer"):
        Transport(scripted.endpoint).ask(AskStatus("1"), 0.5)


def test_unknown_fields_of_a_later_minor_version_are_ignored(daemon):
    body = {"type": "StatusReply", "id": "1", "status": {}, "later": 1}
    scripted = daemon(lambda request: [b"cachecd/1.7", json.dumps(body).encode()])
    assert Transport(scripted.endpoint).ask(AskStatus("1"), 10) == StatusReply("1", {})


@pytest.mark.parametrize(
    ("endpoint", "message"),
    [
        ("tcp://127.0.0.1:5555", "expected the address of a Unix socket"),
        ("ipc:///" + "x" * 107, "its path has 108 bytes, expected at most 107"),
    ],
)
def test_an_impossible_endpoint_is_refused(endpoint, message):
    with pytest.raises(CallerError, match=message):
        Transport(endpoint)
