"""Each kind of store keeps the contract, and what is special about it."""

from __future__ import annotations

import asyncio
import os
import uuid
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import fsspec
import pytest

from cachecd.errors import ConfigError, SourceUnreachableError, UnitError
from cachecd.stores.fetch import Store
from tests import scripted
from tests.contracts.store import (
    Filled,
    LiteralContract,
    Poured,
    StoreContract,
    get,
    listed,
    opened,
)
from tests.scripted import scripted_server
from tests.stores import S3Server


@pytest.fixture(scope="module")
def bucket(s3: S3Server) -> str:
    return s3.bucket("stores")


class TestS3(StoreContract):
    in_order = False  # SeaweedFS lists folder by folder

    @pytest.fixture
    def filled(self, s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Filled:
        for name, value in s3.environ.items():
            monkeypatch.setenv(name, value)
        self.prefix = f"{uuid.uuid4().hex}/prefix"

        def fill(objects: dict[str, bytes]) -> Store:
            objects = {f"{self.prefix}/{key}": body for key, body in objects.items()}
            s3.put(bucket, {**objects, f"{self.prefix}-too": b"a neighbour"})
            return opened(f"s3://{bucket}/{self.prefix}")

        return fill

    @pytest.mark.long  # puts a thousand objects
    def test_a_listing_longer_than_a_page_is_complete(self, filled: Filled):
        super().test_a_listing_longer_than_a_page_is_complete(filled)

    @pytest.mark.parametrize("key", ["new\nline", "tab\there"])
    def test_keys_that_obstore_cannot_name_are_read_all_the_same(self, filled: Filled, key: str):
        store = filled({key: b"0123456789"})
        [[found]] = store.list()
        assert found.key == key
        assert get(store, key, 10, found.etag) == b"0123456789"
        assert get(store, key, 10, found.etag, start=2, stop=5) == b"234"
        size, end = asyncio.run(store.tail(key, 3, found.etag))
        assert (size, bytes(end)) == (10, b"789")
        with pytest.raises(UnitError, match="changed since it was listed"):
            get(store, key, 10, '"another"')

    def test_a_changed_object_is_the_units_fault(self, filled: Filled, s3: S3Server, bucket: str):
        store = filled({"object": b"before"})
        [[found]] = store.list()
        s3.put(bucket, {f"{self.prefix}/object": b"after!"})
        with pytest.raises(UnitError, match="changed since it was listed"):
            get(store, found.key, found.size, found.etag)
        with pytest.raises(UnitError, match="changed since it was listed"):
            get(store, found.key, found.size, found.etag, start=1, stop=2)

    def test_the_endpoint_of_the_source_counts_before_the_environments(
        self, filled: Filled, s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
    ):
        filled({"a": b"1"})
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:2")
        store = opened(f"s3://{bucket}/{self.prefix}/", endpoint=s3.endpoint)
        assert listed(store) == {"a": 1}
        assert get(store, "a", 1) == b"1"


@pytest.mark.parametrize("kind", ["s3", "s3-object-lambda"])
def test_an_access_point_is_listed_and_read(monkeypatch: pytest.MonkeyPatch, kind: str):
    """By its own host, in the region of its ARN; here a proxy stands for it."""
    host = "http://name-123456789012.s3.test"

    def answer(handler: BaseHTTPRequestHandler) -> None:
        assert f"us-west-2/{kind}/aws4_request" in handler.headers["Authorization"]
        if handler.path.startswith(f"{host}/?list-type=2&prefix=x%2F%2F&"):
            entry = (
                "<Contents><Key>x//a?b</Key><Size>5</Size><ETag>&quot;tag&quot;</ETag></Contents>"
            )
            scripted.body(f"<ListBucketResult>{entry}</ListBucketResult>".encode())(handler)
        elif handler.path == f"{host}/x//a%3Fb":
            scripted.body(b"12345")(handler)
        else:
            scripted.refusal(404, "NoSuchKey")(handler)

    with scripted_server() as server:
        server.down, server.heads = answer, True
        for name, value in {
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "y",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": "http://s3.test",
            "HTTP_PROXY": server.endpoint,
            "http_proxy": server.endpoint,
        }.items():
            monkeypatch.setenv(name, value)
        store = opened(f"s3://arn:aws:{kind}:us-west-2:123456789012:accesspoint/name/x//")
        assert listed(store) == {"a?b": 5}
        assert get(store, "a?b", 5, '"tag"') == b"12345"
        assert asyncio.run(store.find("a?b")).size == 5
        assert asyncio.run(store.tail("a?b", 2)) == (5, b"45")


class TestFiles(StoreContract):
    @pytest.fixture
    def filled(self, tmp_path: Path) -> Filled:
        def fill(objects: dict[str, bytes]) -> Store:
            self.root = tmp_path / "a folder"
            self.root.mkdir()
            for key, body in objects.items():
                path = self.root / key
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(body)
            return opened(f"file://{self.root}/")

        return fill

    def test_special_files_are_left_out_and_hidden_folders_are_not_opened(self, filled: Filled):
        store = filled({"a": b"1", ".folder/b": b"3"})
        (self.root / ".folder").chmod(0)
        os.mkfifo(self.root / "fifo")
        (self.root / "to nothing").symlink_to("nowhere")
        assert listed(store) == {"a": 1}
        assert str(store.backend.left_out) == "1 hidden name (.folder/)"

    def test_links_are_followed_but_not_in_circles(self, filled: Filled, tmp_path: Path):
        store = filled({"a/x": b"1"})
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        (elsewhere / "y").write_bytes(b"22")
        (self.root / "linked").symlink_to(elsewhere)
        (self.root / "a" / "up").symlink_to(self.root)
        assert listed(store) == {"a/x": 1, "linked/y": 2}
        assert get(store, "linked/y", 2) == b"22"

    def test_a_name_that_is_not_utf8_is_left_out_with_a_warning(
        self, filled: Filled, caplog: pytest.LogCaptureFixture
    ):
        store = filled({"a": b"1"})
        (self.root / os.fsdecode(b"caf\xe9")).write_bytes(b"2")
        assert listed(store) == {"a": 1}
        assert "caf\\xe9" in caplog.text

    def test_a_changed_file_is_the_units_fault(self, filled: Filled):
        store = filled({"a": b"before"})
        [[found]] = store.list()
        os.utime(self.root / "a", ns=(1, 1))
        with pytest.raises(UnitError, match="changed since it was listed"):
            get(store, "a", 6, found.etag)

    def test_a_folder_that_does_not_exist_is_unreachable(self, tmp_path: Path):
        store = opened(f"file://{tmp_path}/nowhere")
        with pytest.raises(SourceUnreachableError, match=r"cannot list .*/nowhere: No such file"):
            listed(store)
        with pytest.raises(SourceUnreachableError, match="/nowhere: the folder does not exist"):
            get(store, "a", 1)


class TestFilesLiterally(LiteralContract):
    refused = frozenset({"up/../b/", "here/./b/"})
    # To the system, a//b is another text for the path a/b.
    absent = frozenset({"a//b/", "/lead/", "trail//", "proto://x/"})

    @pytest.fixture
    def poured(self, tmp_path: Path) -> Poured:
        def pour(objects: dict[str, bytes]) -> str:
            for key, body in objects.items():
                path = f"{tmp_path}/data/{key}"
                os.makedirs(os.path.dirname(path), exist_ok=True)
                Path(path).write_bytes(body)
            return f"file://{tmp_path}/data/"

        return pour


class TestFsspec(StoreContract):
    @pytest.fixture
    def filled(self) -> Filled:
        def fill(objects: dict[str, bytes]) -> Store:
            root = f"/{uuid.uuid4().hex}/some/prefix"
            fsspec.filesystem("memory").makedirs(root)
            for key, body in objects.items():
                fsspec.filesystem("memory").pipe(f"{root}/{key}", body)
            return opened(f"memory:/{root}/")

        return fill

    def test_an_unknown_scheme_is_a_configuration_error(self):
        with pytest.raises(ConfigError, match="no store has URLs that begin with gopher://"):
            opened("gopher://host/data/")
        with pytest.raises(ConfigError, match="begin with s4://: did you mean s3://"):
            opened("s4://bucket/data/")

    def test_a_scheme_whose_package_is_missing_says_which(self):
        with pytest.raises(ConfigError, match=r"sftp:// needs a package: .*paramiko"):
            opened("sftp://host/data/")
