"""Google's and Azure's stores: the contract, credentials, and what goes wrong."""

from __future__ import annotations

import asyncio
import gzip
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachecd.errors import ConfigError, SourceUnreachableError, UnitError
from cachecd.stores.fetch import Store
from cachecd.stores.key_ranges import Lanes
from tests import clouds, scripted
from tests.clouds import ACCOUNT, ACCOUNT_KEY, Azure, Cloud, Google
from tests.contracts.store import (
    Filled,
    LiteralContract,
    Poured,
    StoreContract,
    get,
    listed,
    opened,
)
from tests.scripted import ScriptedServer, scripted_server


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Nothing of the machine's own accounts."""
    for name in os.environ:
        if name.startswith(("GOOGLE_", "AZURE_", "AZURITE_", "AWS_")):
            monkeypatch.delenv(name)
    return monkeypatch


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted_server() as server:
        server.heads = True
        yield server


def refused(store: Store, match: str) -> None:
    for ask in (lambda: listed(store), lambda: get(store, "object", 5)):
        with pytest.raises(SourceUnreachableError, match=match) as caught:
            ask()
        assert "StringToSign" not in f"{caught.value} {caught.value.__cause__}"


class OfACloud(StoreContract, LiteralContract):
    url = ""
    holds_all = True
    refused = frozenset(
        {"a//b/", "/lead/", "trail//", "up/../b/", "here/./b/", "proto://x/", "new\nline/"}
    )

    @pytest.fixture
    def poured(self, cloud: Cloud) -> Poured:
        def pour(objects: dict[str, bytes]) -> str:
            cloud.prefix = ""
            cloud.objects.clear()
            cloud.put(objects)
            return self.url.removesuffix("some/prefix/")

        return pour

    @pytest.fixture
    def cloud(self, server: ScriptedServer, environ: pytest.MonkeyPatch) -> Cloud:
        raise NotImplementedError

    @pytest.fixture
    def filled(self, cloud: Cloud) -> Filled:
        def fill(objects: dict[str, bytes]) -> Store:
            cloud.objects["some/prefix-too"] = b"a neighbour"
            cloud.versions["some/prefix-too"] = 1
            cloud.put(objects)
            return opened(self.url)

        return fill

    def test_markers_of_folders_are_known_as_such(self, filled: Filled):
        """Whatever comes between a folder's marker and its objects, and where a listing goes on."""
        some = {"a/": b"", "a/x": b"1", "b.txt": b"2", "b/": b"", "b/x": b"3", "b": b"4", "c": b""}
        store = filled(some)
        plain = store.backend._store.backend
        assert [o.key for page in plain.list() for o in page] == sorted(some)
        assert listed(store) == {"a/x": 1, "b": 1, "b.txt": 1, "b/x": 1}
        assert [o.key for page in store.list("b.txt") for o in page] == ["b/x"]

    def test_a_changed_object_is_the_units_fault(self, filled: Filled, cloud: Cloud):
        store = filled({"object": b"before"})
        [[found]] = store.list()
        assert get(store, "object", 6, found.etag, start=1, stop=3) == b"ef"
        cloud.put({"object": b"after!"})
        for bounds in ({}, {"start": 1, "stop": 2}):
            with pytest.raises(UnitError, match="changed since it was listed"):
                get(store, "object", 6, found.etag, **bounds)

    @pytest.mark.parametrize("trouble", [scripted.refusal(503, "Busy"), scripted.hang_up])
    def test_trouble_that_passes_is_not_noticed(
        self, filled: Filled, cloud: Cloud, server: ScriptedServer, trouble: scripted.Answer
    ):
        store, first = filled({"object": b"1"}), [trouble]
        server.down = lambda handler: (first.pop() if first else cloud)(handler)
        assert get(store, "object", 1) == b"1"
        assert not first

    def test_a_bucket_that_does_not_exist_is_unreachable(self, filled: Filled, cloud: Cloud):
        store = filled({"object": b"12345"})
        cloud.root += "-renamed"
        refused(store, f"{self.url}.*there is no such bucket")

    def test_who_is_not_let_in_is_told_without_secrets(self, filled: Filled, cloud: Cloud):
        store = filled({"object": b"12345"})
        cloud.allowed = lambda handler: False
        for ask in (lambda: listed(store), lambda: get(store, "object", 5)):
            with pytest.raises(SourceUnreachableError, match=r"access denied \(403") as caught:
                ask()
            assert "StringToSign" not in f"{caught.value} {caught.value.__cause__}"


class TestGoogle(OfACloud):
    url = "gs://bucket/some/prefix/"

    @pytest.fixture
    def cloud(self, server: ScriptedServer, environ: pytest.MonkeyPatch) -> Cloud:
        environ.setenv("GOOGLE_BASE_URL", server.endpoint)
        environ.setenv("GOOGLE_BEARER_TOKEN", "a-token")
        server.down = cloud = Google("/bucket", "some/prefix/")
        cloud.allowed = clouds.bearer("a-token")
        return cloud

    def test_it_is_listed_by_several_requests_at_a_time(
        self, filled: Filled, server: ScriptedServer
    ):
        objects = {f"class-{n % 50:02d}/{n:05d}": b"x" * (n % 3 + 1) for n in range(4000)}
        sweep = filled(objects).sweep(Lanes())
        assert sweep is not None
        found = [o for page in iter(sweep.next, None) for o in page]
        sweep.close()
        assert sorted((o.key, o.size) for o in found) == sorted(
            (key, len(body)) for key, body in objects.items()
        )
        begun = {path.partition("start-after=")[2] for path in server.asked}
        assert len(begun) > 10

    def test_object_of_content_encoding_gzip_is_read_as_it_is_stored(
        self, filled: Filled, cloud: Google
    ):
        packed = gzip.compress(b"abc" * 1000, mtime=0)
        store = filled({"object": packed})
        cloud.inflated = frozenset({"some/prefix/object"})
        [[found]] = store.list()
        assert get(store, "object", found.size, found.etag) == packed
        assert get(store, "object", found.size, found.etag, start=3, stop=9) == packed[3:9]
        assert asyncio.run(store.find("object")).size == len(packed)

    def test_without_credentials_it_says_where_they_were_looked_for(
        self, filled: Filled, environ: pytest.MonkeyPatch, tmp_path: Path
    ):
        environ.delenv("GOOGLE_BEARER_TOKEN")
        environ.setenv("HOME", str(tmp_path))
        for name in ("GCE_METADATA_HOST", "GCE_METADATA_IP"):
            environ.setenv(name, "127.0.0.1:1")
        reason = "no credentials: looked in GOOGLE_APPLICATION_CREDENTIALS.*refused"
        refused(filled({"object": b"12345"}), reason)

    def test_a_key_file_that_is_none_is_a_configuration_error(
        self, cloud: Cloud, environ: pytest.MonkeyPatch, tmp_path: Path
    ):
        (tmp_path / "key.json").write_text("{}")
        environ.setenv("GOOGLE_SERVICE_ACCOUNT", str(tmp_path / "key.json"))
        with pytest.raises(ConfigError, match=r"gs://bucket/: .*account file: missing field"):
            opened(self.url)


class TestAzure(OfACloud):
    url = "az://container/some/prefix/"

    @pytest.fixture
    def cloud(self, server: ScriptedServer, environ: pytest.MonkeyPatch) -> Cloud:
        environ.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
        environ.setenv("AZURE_STORAGE_ACCOUNT_KEY", ACCOUNT_KEY)
        environ.setenv("AZURE_STORAGE_ENDPOINT", f"{server.endpoint}/{ACCOUNT}")
        server.down = cloud = Azure(f"/{ACCOUNT}/container", "some/prefix/")
        signed = f"SharedKey {ACCOUNT}:"
        cloud.allowed = lambda handler: handler.headers.get("Authorization", "").startswith(signed)
        return cloud

    def test_without_credentials_it_says_where_they_were_looked_for(
        self, filled: Filled, environ: pytest.MonkeyPatch
    ):
        environ.delenv("AZURE_STORAGE_ACCOUNT_KEY")
        environ.setenv("AZURE_MSI_ENDPOINT", "http://127.0.0.1:1/token")
        reason = "no credentials: looked in AZURE_STORAGE_ACCOUNT_KEY.*refused"
        refused(filled({"object": b"12345"}), reason)
