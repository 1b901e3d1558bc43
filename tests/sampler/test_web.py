"""Files of a web server, by a real one and by one that lies."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cachecd.errors import SourceUnreachableError, UnitError
from cachecd.stores.backend import GoneError
from cachecd.stores.fetch import Store
from tests import scripted
from tests.contracts.store import Filled, StoreContract, get, listed, opened
from tests.scripted import ScriptedServer, scripted_server


class _Files(SimpleHTTPRequestHandler):
    """Python's own server, its pages those of folders, with ranges and tags as all others have them."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if path.is_file():
            content = path.read_bytes()
            etag = f'"{path.stat().st_mtime_ns}"'
            if self.headers.get("If-Match", etag) != etag:
                return scripted.refusal(412, "")(self)
            return scripted.body(content, etag)(self)
        return super().do_GET()

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def web_server(folder: Path) -> Iterator[str]:
    handler: Any = functools.partial(_Files, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        server.block_on_close = False
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


class TestWeb(StoreContract):
    @pytest.fixture
    def filled(self, tmp_path: Path) -> Iterator[Filled]:
        self.root = tmp_path / "data" / "a folder"

        def fill(objects: dict[str, bytes]) -> Store:
            self.root.mkdir(parents=True)
            for key, content in objects.items():
                path = self.root / key
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            return opened(f"{address}/data/a%20folder/")

        with web_server(tmp_path) as address:
            yield fill

    def test_an_object_that_is_not_there_is_not_found(self, filled: Filled):
        """Of a folder's name that is not so: whoever asks for that is sent to its page."""
        store = filled({"folder/other": b"1"})
        with pytest.raises(GoneError):
            asyncio.run(store.find("folder/others"))

    def test_a_changed_object_is_the_units_fault(self, filled: Filled):
        store = filled({"object": b"before"})
        [[found]] = store.list()
        (self.root / "object").write_bytes(b"after!")
        with pytest.raises(UnitError, match="changed since it was listed"):
            get(store, "object", 6, found.etag)


def test_urls_of_a_table_are_encoded_and_keys_are_not(tmp_path: Path):
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "x y").write_bytes(b"right")
    (folder / "x%20y").write_bytes(b"ANOTHER")
    with web_server(tmp_path) as address:
        url = f"{address}/a%20folder/"
        for table, key in (f"url\n{url}x%20y", "x y"), ("key\nx%20y", "x%20y"):
            (folder / "the table.csv").write_text(table)
            store = opened(url, manifest=f"{url}the%20table.csv")
            assert listed(store) == {key: (folder / key).stat().st_size}
            assert get(store, key, (folder / key).stat().st_size) == (folder / key).read_bytes()


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted_server() as server:
        server.heads = True
        yield server


def page(*links: str) -> scripted.Answer:
    return scripted.body("".join(f'<A HREF="{link}">x</A>' for link in links).encode())


def test_only_links_one_step_down_are_followed(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture
):
    server.script["/x/"] = [
        page(
            *("../", "/", "/y/z", "http://127.0.0.1:1/x/a", "?C=N;O=D", "a?v=1", ".hidden", "#top"),
            *("b/c", "%2e%2e/", "d%2Fe", "f%0Ag", "mailto:me", "//host/x/h", "x:[", ""),
            *("good", "/x/too", "gone", "endless"),
        )
    ]
    server.script["/x/good"] = [scripted.body(b"12345")]
    server.script["/x/too"] = [scripted.body(b"1")]
    server.script["/x/endless"] = [scripted.chunked(b"", whole=True)]
    store = opened(f"{server.endpoint}/x")
    found = listed(store)
    assert found == {"good": 5, "too": 1}, server.asked
    assert "'gone'" in caplog.text
    assert "'endless'" in caplog.text
    assert "f\\ng" in caplog.text


def test_a_server_without_head_is_asked_for_a_byte(server: ScriptedServer):
    server.heads = False
    server.script["/x/"] = [page("a", "gone")]
    server.script["/x/a"] = [scripted.body(b"12345")]
    store = opened(f"{server.endpoint}/x")
    assert listed(store) == {"a": 5}
    assert asyncio.run(store.find("a")).size == 5


def test_folders_without_an_end_are_unreachable(server: ScriptedServer):
    server.down = page("again/")
    with pytest.raises(SourceUnreachableError, match="64 nested folders"):
        listed(opened(server.endpoint))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (scripted.refusal(404, ""), "has no page for this folder"),
        (scripted.refusal(403, ""), r"access denied \(403\)"),
        (scripted.refusal(503, ""), r"throttling \(503\)"),
        (scripted.hang_up, "closed connection|cannot read"),
    ],
    ids=["404", "403", "503", "hang-up"],
)
def test_a_folder_without_a_page_says_why(
    server: ScriptedServer, answer: scripted.Answer, reason: str
):
    server.script["/x/"] = [answer]
    with pytest.raises(
        SourceUnreachableError, match=f"{server.endpoint}/x/: cannot list: .*{reason}"
    ):
        listed(opened(f"{server.endpoint}/x/"))


def test_a_server_that_does_not_know_ranges_says_so(server: ScriptedServer):
    def whole(handler: Any) -> None:
        del handler.headers["Range"]
        scripted.body(b"0123456789")(handler)

    server.script["/x/a"] = [whole]
    store = opened(f"{server.endpoint}/x/")
    assert get(store, "a", 10) == b"0123456789"
    with pytest.raises(SourceUnreachableError, match="the whole object, but a part was requested"):
        get(store, "a", 10, start=2, stop=4)
