"""The HTTP server as clients meet it: good ones, slow ones, a thousand at once, and garbage."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import resource
import selectors
import socket
import time
from http.client import HTTPConnection

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cachecd.monitor import http
from cachecd.monitor.history import History
from cachecd.monitor.http import HttpServer
from tests.monitor.documents import GIB, busy, dataset, status

PATHS = ("/", "/page.js", "/page.css", "/uplot.js", "/metrics", "/status.json", "/history.json")


class Served:
    """A server with a history, and documents as a daemon offers them."""

    def __init__(self, **options):
        self.history = History()
        self.server = HttpServer("127.0.0.1", 0, self.history, **options)
        until(lambda: self.get("/healthz").status == 503)

    def offer(self, document):
        self.history.add(document, time.time())
        self.server.offer(document)
        return self

    def get(self, path, method="GET", **headers):
        connection = HTTPConnection("127.0.0.1", self.server.port, timeout=10)
        try:
            connection.request(method, path, headers=headers)
            reply = connection.getresponse()
            reply.body = reply.read()
            return reply
        finally:
            connection.close()

    def json(self, path):
        return json.loads(self.get(path).body)

    def connect(self, sent=b""):
        connected = socket.create_connection(("127.0.0.1", self.server.port), timeout=10)
        connected.sendall(sent)
        return connected

    def is_well(self):
        with contextlib.suppress(OSError):
            return self.get("/healthz").status == 200
        return False


def until(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def serve():
    served = []

    def start(document=None, **options):
        served.append(Served(**options))
        if document is not None:
            served[-1].offer(document)
            until(served[-1].is_well)
        return served[-1]

    yield start
    for each in served:
        each.server.close()


def test_every_path_answers_from_the_document(serve):
    served = serve(busy())
    assert {path: served.get(path).status for path in PATHS} == dict.fromkeys(PATHS, 200)
    assert served.json("/status.json")["datasets"]["train"]["records"] == 400_000
    text = served.get("/metrics").body.decode()
    assert "cachecd_dataset_records" in {each.name for each in text_string_to_metric_families(text)}
    assert served.json("/history.json")["seconds"][0]["rows"]


def test_texts_that_are_not_unicode_are_sent_as_unicode(serve):
    served = serve(busy(), shows_keys=True)
    for path in ("/status.json", "/history.json"):
        text = served.get(path).body.decode("utf-8")
        assert "</script>?" in text
        assert "\\ud800" not in text


def test_newer_document_replaces_the_last(serve):
    served = serve(status())
    served.offer(busy())
    until(lambda: served.json("/status.json")["datasets"]["train"]["records"] == 400_000)
    assert b'records{dataset="train"} 400000.0' in served.get("/metrics").body


def test_before_the_first_document_nothing_is_available(serve):
    served = serve()
    for path in ("/metrics", "/status.json", "/healthz", "/readyz"):
        assert served.get(path).status == 503, path
    assert served.get("/").status == 200


def test_loop_that_stops_is_not_healthy(serve, monkeypatch):
    served = serve(busy())
    monkeypatch.setattr(http, "_STALE", 0.0)
    reply = served.get("/healthz")
    assert reply.status == 503
    assert b"has made no status document for" in reply.body


def test_cache_is_ready_when_a_set_can_be_leased(serve):
    pinned = dataset(pinned=True, records=10, allocated=10 * GIB, first=GIB, leasable=False)
    spent = dataset(records=10, allocated=GIB, first=2 * GIB, leasable=True)
    assert serve(status(datasets={"a": pinned})).get("/readyz").status == 503
    assert serve(status(datasets={"a": pinned, "b": spent})).get("/readyz").status == 200


def times(history):
    return [row[0] for run in history["seconds"] for row in run["rows"]]


def test_history_after_a_recent_time_is_the_last_minute(serve):
    served = serve()
    for second in range(200):
        served.history.add(status(), 1000.0 + second)
    assert times(served.json("/history.json")) == [1000.0 + second for second in range(200)]
    assert times(served.json("/history.json?since=1150")) == [1140.0 + n for n in range(60)]
    assert served.get("/history.json?since=yesterday").status == 400


def test_history_after_any_time_is_one_of_two_texts(serve, monkeypatch):
    for kept in ("_MINUTE_KEPT", "_WHOLE_KEPT"):
        monkeypatch.setattr(http, kept, 1000.0)
    served = serve(busy())
    made = []
    text = served.history.text
    served.history.text = lambda since: made.append(since) or text(since)
    served.history.add(busy(), time.time() + 1000)
    for since in ("-inf", "inf", "nan", "0", *range(20), time.time(), time.time() + 999):
        for packing in ("gzip", "identity"):
            reply = served.get(f"/history.json?since={since}", **{"Accept-Encoding": packing})
            assert reply.status == 200
    assert len(made) == 2


def test_clients_that_never_read_hold_no_copies(serve):
    served = serve(busy())
    served.history.text = lambda since: iter([b"[0", b",0" * (16 << 20), b"]"])
    with contextlib.ExitStack() as opened:
        for _ in range(10):
            silent = socket.socket()
            opened.enter_context(silent)
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            silent.connect(("127.0.0.1", served.server.port))
            silent.sendall(b"GET /history.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
        connections = served.server._server.server_state.connections
        until(
            lambda: sum(bool(each.transport.get_write_buffer_size()) for each in connections) == 10
        )
        assert max(each.transport.get_write_buffer_size() for each in connections) < 1 << 18
    assert served.json("/history.json") == [0] * ((16 << 20) + 1)


def test_history_is_packed_for_a_client_that_accepts_it(serve):
    served = serve(busy())
    packed = served.get("/history.json", **{"Accept-Encoding": "gzip"})
    assert json.loads(gzip.decompress(packed.body)) == served.json("/history.json")


@pytest.mark.parametrize("shows_keys", [False, True])
def test_keys_are_shown_only_on_request(serve, shows_keys):
    served = serve(busy(), shows_keys=shows_keys)
    text = b"".join(served.get(path).body for path in PATHS)
    assert (b"dog/0001.jpg" in text) == shows_keys
    assert (b"owned" in json.dumps(served.json("/status.json")["datasets"]).encode()) == shows_keys
    [first, _] = served.json("/status.json")["datasets"]["train"]["skipped"]["reasons"].values()
    assert first["units"] == 11


def test_browser_is_told_to_load_and_run_nothing_else(serve):
    served = serve(busy())
    for path in PATHS:
        policy = served.get(path).headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';"), path
        assert "unsafe" not in policy


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:9400", "localhost.evil.example", ""]
)
def test_other_web_site_cannot_read_by_its_own_name(serve, host):
    served = serve(busy())
    assert served.get("/status.json", Host=host).status == 421
    assert served.get("/status.json", Host="localhost:9400").status == 200
    assert served.get("/status.json", Host="[::1]:9400").status == 200


def test_any_name_is_allowed_if_other_machines_may_connect(serve):
    assert serve(busy(), any_host=True).get("/metrics", Host="node7:9400").status == 200


def test_nothing_can_be_changed(serve):
    served = serve(busy())
    assert {served.get("/status.json", m).status for m in ("POST", "PUT", "DELETE")} == {405}
    assert served.get("/etc/passwd").status == 404
    assert served.get("/..%2f..%2fetc/passwd").status == 404


def test_address_in_use_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(OSError, match="in use"):
        HttpServer("127.0.0.1", other.getsockname()[1], History())


# --- clients that do harm


@pytest.fixture
def many_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_thousand_scrapers_at_once_disturb_nobody(serve, many_files):
    served = serve(busy())
    expected = served.get("/metrics").body
    request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    replies = {}
    with selectors.DefaultSelector() as ready, contextlib.ExitStack() as opened:
        for _ in range(1000):
            scraper = opened.enter_context(socket.socket())
            scraper.setblocking(False)
            scraper.connect_ex(("127.0.0.1", served.server.port))
            ready.register(scraper, selectors.EVENT_WRITE)
            replies[scraper] = b""
        deadline = time.monotonic() + 60
        while ready.get_map():
            assert time.monotonic() < deadline
            for key, event in ready.select(1):
                scraper = key.fileobj
                try:
                    if event & selectors.EVENT_WRITE:
                        scraper.sendall(request)
                        ready.modify(scraper, selectors.EVENT_READ)
                    elif part := scraper.recv(1 << 16):
                        replies[scraper] += part
                    else:
                        ready.unregister(scraper)
                except OSError:  # the kernel keeps fewer connections than expected
                    ready.unregister(scraper)
                    del replies[scraper]
    assert len(replies) >= 100
    assert {reply.partition(b"\r\n\r\n")[2] for reply in replies.values()} == {expected}
    until(served.offer(busy()).is_well)


def test_client_that_never_reads_loses_its_connection(serve, monkeypatch):
    monkeypatch.setattr(http, "_LONGEST", 0.5)
    served = serve(busy())
    document = busy()
    for second in range(3000):
        served.history.add(document, time.time() + second)
    with contextlib.ExitStack() as opened:
        for _ in range(20):
            asked = served.connect(b"GET /history.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5)
            opened.enter_context(asked)
        assert served.is_well()
        until(lambda: not served.server._server.server_state.connections)
    assert served.is_well()


def test_clients_that_never_send_leave_room_for_others(serve, monkeypatch):
    monkeypatch.setattr(http, "_LONGEST", 1.0)
    served = serve(busy())
    with contextlib.ExitStack() as opened:
        for _ in range(300):
            opened.enter_context(served.connect())
        until(served.is_well)
        assert len(served.server._server.server_state.connections) <= http._MOST_CONNECTIONS


def test_garbage_is_refused(serve, caplog):
    served = serve(busy())
    chosen = random.Random(44)
    sent = [chosen.randbytes(chosen.randrange(1, 3000)) for _ in range(200)]
    sent += [
        b"GET / HTTP/1.1\r\nX: " + b"y" * 1_000_000,
        b"GET /\xff\xfe HTTP/1.1\r\n\r\n",
        b"\r\n" * 9,
    ]
    sent += [b"GET /metrics HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"]
    for garbage in sent:
        with contextlib.suppress(OSError), served.connect() as connected:
            connected.sendall(garbage)
    until(served.is_well)
    assert caplog.records == [], "a client must not fill the log"


def test_defect_in_an_answer_leaves_the_server_alive(serve):
    served = serve(busy())
    served.server.offer({"datasets": {}})
    with contextlib.suppress(OSError):
        served.get("/metrics")
    served.offer(busy())
    until(served.is_well)


def test_close_ends_the_thread_while_clients_are_connected(serve):
    served = serve(busy())
    with served.connect(b"GET /metrics HTTP/1.1\r\n"):
        began = time.monotonic()
        served.server.close()
        assert time.monotonic() - began < 5
        assert not served.server.is_alive
