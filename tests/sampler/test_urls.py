"""Manifests of URLs on any hosts: read from each as it is named, and from nowhere else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachecd.config import SourceConfig
from cachecd.errors import SourceUnreachableError, UnitError
from cachecd.model import ObjectInfo
from cachecd.stores.backend import GoneError
from cachecd.stores.fetch import Store
from cachecd.stores.retry import Retry
from cachecd.units.source_units import list_units
from cachecd.units.unit_store import open_unit_store
from tests import scripted
from tests.contracts.store import get
from tests.scripted import ScriptedServer, scripted_server


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    with scripted_server() as server:
        server.heads = True
        yield server


@pytest.fixture
def there(here: ScriptedServer) -> Iterator[ScriptedServer]:
    with scripted_server() as server:
        server.endpoint = server.endpoint.replace("127.0.0.1", "localhost")
        yield server


def source(folder: Path, rows: list[dict[str, object]], url: str = "http://") -> SourceConfig:
    (folder / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    keys = {"url": url, "format": "files", "manifest": f"file://{folder}/t.jsonl"}
    return SourceConfig.model_validate(keys)


def opened(found: SourceConfig) -> Store:
    return open_unit_store(found, 8, Retry(tries=2, first=0.001, silence=5.0))


def listed(found: SourceConfig) -> list[ObjectInfo]:
    return [unit for page in list_units(found, opened(found)) for unit in page]


def test_rows_name_urls_of_several_hosts_and_each_is_asked_as_it_is_written(here, there, tmp_path):
    here.script["/a%20b/%2F//c?w=1&h=%2F"] = [scripted.body(b"of here", '"h"')]
    there.script["/plain"] = [scripted.body(b"of there", '"t"')]
    one, other = f"{here.endpoint}/a%20b/%2F//c?w=1&h=%2F", f"{there.endpoint}/plain"
    # Those without a size are looked up, by HEAD, which the second server does not know.
    rows = [{"url": one}, {"url": f"{one}&gone"}, {"url": other}]
    config = source(tmp_path, [*rows, {"url": other, "size": 8, "offset": 3}])
    units = listed(config)
    assert units == [
        ObjectInfo(one, 7, '"h"'),
        ObjectInfo(other, 8, '"t"'),
        ObjectInfo(other, 5, "", 3),
    ]
    store = opened(config)
    assert get(store, one, 7, '"h"') == b"of here"
    assert get(store, other, 8, '"t"', start=3, stop=8) == b"there"
    assert asyncio.run(store.tail(other, 5)) == (8, b"there")
    assert here.headers[0]["accept-encoding"] == "identity"
    assert not {"authorization", "cookie"} & {n for h in here.headers for n in h}


REFUSED = {
    "another scheme": ("file:///etc/passwd", "expected http:// or https://"),
    "a password": ("http://user:secret@host/", "it contains a user or a password"),
    "a port that is none": ("http://host:99999/", "is no URL"),
    "a new line": ("http://host/a\r\nHost: other", "is no URL"),
}


@pytest.mark.parametrize(("url", "why"), REFUSED.values(), ids=REFUSED.keys())
def test_a_row_with_a_url_that_is_not_allowed_is_passed_over(tmp_path, caplog, url, why):
    good = {"url": "https://host/good", "size": 3}
    assert listed(source(tmp_path, [good, {"url": url, "size": 1}])) == [
        ObjectInfo("https://host/good", 3)
    ]
    [record] = caplog.records
    assert why in record.getMessage()
    assert "secret" not in record.getMessage()


def test_a_source_of_https_takes_nothing_else_nor_is_it_led_there(here, there, tmp_path, caplog):
    rows = [{"url": f"{here.endpoint}/a", "size": 3}, {"url": "https://host/b", "size": 3}]
    config = source(tmp_path, rows, "https://")
    assert [u.key for u in listed(config)] == ["https://host/b"]
    assert "expected https://, like the source's url" in caplog.text
    with pytest.raises(UnitError, match="expected https://"):
        get(opened(config), f"{here.endpoint}/a", 3)
    here.script["/file"] = [scripted.redirect(302, "file:///etc/passwd")]
    here.script["/round"] = [scripted.redirect(302, "/round")]
    here.script["/away"] = [scripted.redirect(307, f"{there.endpoint}/x")]
    there.script["/x"] = [scripted.body(b"12345")]
    store = opened(source(tmp_path, rows))
    with pytest.raises(UnitError, match="redirects to another address: 'file:///etc/passwd'"):
        get(store, f"{here.endpoint}/file", 3)
    with pytest.raises(UnitError, match="more than 4 redirections"):
        get(store, f"{here.endpoint}/round", 3)
    assert get(store, f"{here.endpoint}/away", 5) == b"12345"


def test_what_one_server_refuses_costs_its_object_alone(here, there, tmp_path):
    there.script["/good"] = [scripted.body(b"12345")]
    for path, answer in {
        "/private": scripted.refusal(401, ""),
        "/forbidden": scripted.refusal(403, ""),
        "/failing": scripted.refusal(500, ""),
        "/cut": scripted.cut(b"12", 5),
    }.items():
        here.script[path] = [answer]
    here.script["/endless"] = [scripted.endless]
    here.script["/other"] = [scripted.body(b"123456", '"new"')]
    store = opened(source(tmp_path, [{"url": f"{there.endpoint}/good", "size": 5}]))
    for path in ("private", "forbidden", "failing", "cut"):
        assert get(store, f"{there.endpoint}/good", 5) == b"12345"
        with pytest.raises(UnitError, match="while other objects can be read") as caught:
            get(store, f"{here.endpoint}/{path}", 5)
        assert caught.value.passing
    with pytest.raises(GoneError):
        get(store, f"{here.endpoint}/none", 5)
    with pytest.raises(UnitError, match="5 were listed"):
        get(store, f"{here.endpoint}/endless", 5)
    with pytest.raises(UnitError, match=r"changed since it was listed \(412\)"):
        get(store, f"{here.endpoint}/other", 6, '"old"')
    there.script["/good"] = here.script["/private"]
    with pytest.raises(SourceUnreachableError, match=r"http://: localhost: .*credentials \(401\)"):
        get(store, f"{there.endpoint}/good", 5)


def test_servers_that_drip_keep_nobody_from_reading_of_others(here, there, tmp_path):
    there.script["/good"] = [scripted.body(b"12345")]
    here.script["/slow"] = [scripted.drip(here, 1 << 20, every=0.02)]
    config = source(tmp_path, [{"url": f"{there.endpoint}/good", "size": 5}])
    store = open_unit_store(config, 2, Retry(tries=2, first=0.001, silence=0.3, slowest=1 << 30))
    for _ in range(2):
        with pytest.raises(UnitError, match="while other objects can be read"):
            get(store, f"{here.endpoint}/slow", 1 << 20)
        assert get(store, f"{there.endpoint}/good", 5) == b"12345"


def test_a_weak_etag_is_compared_and_not_insisted_on(here, tmp_path):
    def strict(handler) -> None:  # type: ignore[no-untyped-def]
        refused = "If-Match" in handler.headers
        (scripted.refusal(412, "") if refused else scripted.body(b"12345", 'W/"1"'))(handler)

    here.script["/x"] = [strict]
    url = f"{here.endpoint}/x"
    config = source(tmp_path, [{"url": url}])
    folder = SourceConfig.model_validate({"url": here.endpoint, "format": "files"})
    [unit] = listed(config)
    for store, key in (opened(config), url), (opened(folder), "x"):
        assert get(store, key, 5, unit.etag) == b"12345"
        with pytest.raises(UnitError, match="changed since"):
            get(store, key, 5, 'W/"2"')


def test_a_url_without_a_host_needs_a_manifest():
    with pytest.raises(ValueError, match="found https:// without a host"):
        SourceConfig.model_validate({"url": "https://", "format": "files"})
