"""What goes wrong with a store, and what is said about it."""

from __future__ import annotations

import asyncio
import errno
import re
import resource
import uuid
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from cachecd.config import SourceConfig
from cachecd.errors import SourceError, SourceUnreachableError
from cachecd.model import Unit
from cachecd.sampler.draft import Draft
from cachecd.stores.backend import TransientError, is_shortage
from cachecd.stores.fetch import Store
from cachecd.stores.local import LocalBackend
from cachecd.stores.retry import Retry
from cachecd.units.unit_store import open_unit_store
from tests import scripted
from tests.contracts.store import LiteralContract, Poured, get, listed
from tests.sampler.test_worker import Bench
from tests.scripted import scripted_server
from tests.stores import SECRET_KEY, S3Server

NO_CREDENTIALS = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent/credentials",
    "AWS_CONFIG_FILE": "/nonexistent/config",
}

NOBODY = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "")


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No AWS variable but those that keep the machine's own credentials out."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in NO_CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def opened(url: str, endpoint: str, **more: object) -> Store:
    source = {"url": url, "format": "files", "endpoint": endpoint, **more}
    return open_unit_store(SourceConfig.model_validate(source), 8, Retry(tries=2, first=0.001))


def failure(store: Store, how: str) -> SourceError:
    with pytest.raises(SourceError) as caught:
        listed(store) if how == "list" else get(store, "key", 5)
    return caught.value


# Who asks ("" in place of the server's own keys), where, and what is said to a person who can act on it.
UNREACHABLE: dict[str, tuple[dict[str, str], dict[str, object], str]] = {
    "no such bucket": ({}, {"url": "s3://nobodys-bucket/x/"}, "no such bucket"),
    "no credentials": (NOBODY, {},
        "no credentials found: looked in AWS_ACCESS_KEY_ID .* profile 'default' of "
        "/nonexistent/credentials .* `anonymous: true`"),
    "unknown access key": ({"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nothing"}, {},
        "does not know the access key"),
    "wrong secret key": ({"AWS_SECRET_ACCESS_KEY": "x"}, {}, "does not belong to the access key"),
    "anonymous": (NOBODY, {"anonymous": True}, "access denied .403"),
    "nobody listens": ({}, {"endpoint": "http://127.0.0.1:1"},
        "at http://127.0.0.1:1: cannot connect to the store: .*refused"),
    "no such host": ({}, {"endpoint": "http://nowhere.invalid:9000"},
        "nowhere.invalid:9000: cannot resolve the store's host name: .*not known"),
}  # fmt: skip


@pytest.mark.parametrize("how", ["list", "get"])
@pytest.mark.parametrize("name", UNREACHABLE)
def test_an_unreachable_store_says_why(
    s3: S3Server, environ: pytest.MonkeyPatch, name: str, how: str
):
    keys, source, reason = UNREACHABLE[name]
    sign_in(environ, s3)
    for variable, value in keys.items():
        environ.setenv(variable, value) if value else environ.delenv(variable)
    store = opened(**{"url": "s3://bucket/", "endpoint": s3.endpoint, **source})  # type: ignore[arg-type]
    error = failure(store, how)
    assert isinstance(error, SourceUnreachableError)
    assert re.search(reason, str(error)), error
    assert str(error).startswith(f"{store.where}: ")
    assert "not Amazon's" not in str(error), "an endpoint is set"


def sign_in(environ: pytest.MonkeyPatch, s3: S3Server) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        environ.setenv(name, s3.environ[name])


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [("AWS_PROFILE", "typo", "typo"), ("AWS_ACCESS_KEY_ID", "alone", "AWS_SECRET_ACCESS_KEY")],
)
def test_an_environment_that_makes_no_sense_is_refused_at_once(
    environ: pytest.MonkeyPatch, name: str, value: str, said: str
):
    environ.setenv(name, value)
    with pytest.raises(SourceUnreachableError, match=f"s3://bucket/.*{said}"):
        opened("s3://bucket/", "http://127.0.0.1:1")


def test_no_message_carries_a_secret(s3: S3Server, environ: pytest.MonkeyPatch):
    sign_in(environ, s3)
    environ.setenv("AWS_SESSION_TOKEN", "the-session-token")
    for url, endpoint in [("s3://nobodys", s3.endpoint), ("s3://x", "http://127.0.0.1:1")]:
        for how in ("list", "get"):
            error: BaseException | None = failure(opened(url, endpoint), how)
            while error is not None:
                assert SECRET_KEY not in str(error)
                assert "the-session-token" not in str(error)
                error = error.__cause__


def test_renewed_credentials_are_found_without_a_restart(
    s3: S3Server, environ: pytest.MonkeyPatch, tmp_path: Path
):
    keys = tmp_path / "credentials"
    environ.setenv("AWS_SHARED_CREDENTIALS_FILE", str(keys))
    environ.setattr("cachecd.stores.credentials.LIFE", 0.0)
    bucket = s3.bucket(f"renewed-{uuid.uuid4().hex}")
    s3.put(bucket, {"key": b"12345"})
    store = opened(f"s3://{bucket}/", s3.endpoint)
    assert "no credentials found" in str(failure(store, "get"))
    keys.write_text(
        f"[default]\naws_access_key_id = {s3.environ['AWS_ACCESS_KEY_ID']}\n"
        f"aws_secret_access_key = {s3.environ['AWS_SECRET_ACCESS_KEY']}\n"
    )
    assert get(store, "key", 5) == b"12345"


class TestS3Literally(LiteralContract):
    """S3 allows keys that are no paths; SeaweedFS does not have them, so moto does."""

    absent = frozenset({"new\nline/"})

    @pytest.fixture(scope="class")
    @classmethod
    def endpoint(cls) -> Iterator[str]:
        server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
        server.stop()

    @pytest.fixture
    def poured(self, endpoint: str, environ: pytest.MonkeyPatch) -> Poured:
        environ.setenv("AWS_ACCESS_KEY_ID", "x")
        environ.setenv("AWS_SECRET_ACCESS_KEY", "y")
        environ.setenv("AWS_ENDPOINT_URL", endpoint)
        client = boto3.client("s3", region_name="us-east-1")

        def pour(objects: dict[str, bytes]) -> str:
            bucket = f"odd-{uuid.uuid4().hex}"
            client.create_bucket(Bucket=bucket)
            for key, body in objects.items():
                client.put_object(Bucket=bucket, Key=key, Body=body)
            return f"s3://{bucket}/"

        return pour

    def test_keys_that_are_no_paths_are_listed_and_read(self, poured: Poured, endpoint: str):
        keys = ["/lead", "a//b", "a/../b", "./c", "d/.", "e/", "plain"]
        store = opened(f"{poured({f'p/{key}': key.encode() for key in keys})}p", endpoint)
        assert set(listed(store)) == set(keys)
        for key in keys:
            assert get(store, key, len(key)) == key.encode()


def test_the_body_of_a_refusal_is_not_quoted(environ: pytest.MonkeyPatch):
    environ.setenv("AWS_ACCESS_KEY_ID", "x")
    environ.setenv("AWS_SECRET_ACCESS_KEY", "y")
    with scripted_server() as server:
        server.script["/b/key"] = [scripted.refusal(403, "AccessDenied", "StringToSign: secret")]
        error = failure(opened("s3://b/", server.endpoint), "get")
    assert "AccessDenied" in str(error)
    assert "StringToSign" not in f"{error} {error.__cause__}"


def test_a_bucket_in_another_region_names_the_remedy(environ: pytest.MonkeyPatch):
    environ.setenv("AWS_ACCESS_KEY_ID", "x")
    environ.setenv("AWS_SECRET_ACCESS_KEY", "y")
    with scripted_server() as server:
        server.script["/b/key"] = [scripted.refusal(301, "PermanentRedirect")]
        error = failure(opened("s3://b/", server.endpoint), "get")
    assert isinstance(error, SourceUnreachableError)
    assert "in another region" in str(error)
    assert "set `region`" in str(error)


# Unforeseen errors


@pytest.fixture
def odd(tmp_path, monkeypatch):
    """Two objects in a store whose library raises an unforeseen error for the keys in `of`."""
    for name in ("source", "tmp"):
        (tmp_path / name).mkdir()
    for key in "ab":
        (tmp_path / "source" / key).write_bytes(b"x")
    read, of = LocalBackend._read, set()

    def odd(self, key, *more):
        if key in of:
            raise RuntimeError("nobody thought of this\nnor of that")
        return read(self, key, *more)

    monkeypatch.setattr(LocalBackend, "_read", odd)
    source = {"url": f"file://{tmp_path}/source/", "format": "files"}
    return Bench(tmp_path / "tmp", source=source), of


UNITS = [Unit(0, "a", 1), Unit(1, "b", 1)]


def test_whatever_a_stores_library_raises_of_one_object_sets_that_aside_for_a_while(odd):
    bench, of = odd
    of.add("b")
    outcome, _ = bench.made(UNITS)
    assert outcome.records == 1
    (aside,) = outcome.skipped
    assert (aside.key, aside.passing) == ("b", True)
    assert aside.reason.startswith("RuntimeError: nobody thought of this (")


def test_whatever_a_stores_library_raises_of_every_object_fails_the_source(odd, monkeypatch):
    bench, of = odd
    of |= {"a", "b"}
    monkeypatch.setattr(LocalBackend, "glimpse", lambda self: 1 // 0)
    failed = bench.failed(UNITS)
    assert failed.cause == "source"
    assert "RuntimeError: nobody thought of this" in failed.reason
    of.clear()
    assert bench.made(UNITS)[0].records == 2


def test_what_a_worker_itself_fails_by_names_the_unit_that_it_worked_on(odd, monkeypatch):
    """A second time that unit is taken out of the shard."""
    bench, _ = odd
    append = Draft.add

    def fail(self, record, unit, *more):
        if unit.number == 1:
            raise RuntimeError("nobody thought of this")
        return append(self, record, unit, *more)

    monkeypatch.setattr(Draft, "add", fail)
    failed = bench.failed(UNITS)
    assert (failed.cause, failed.unit) == ("worker", 1)
    assert "nobody thought of this" in failed.reason


async def test_process_without_descriptors_is_not_retried(tmp_path: Path):
    (tmp_path / "key").write_bytes(b"12345")
    never = Retry(first=1000.0, longest=1000.0)
    store = Store(LocalBackend(str(tmp_path), 1), never, 1)
    assert await store.get("key", 5) == b"12345"  # its thread has started
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        async with asyncio.timeout(30):
            with pytest.raises(TransientError, match="Too many open files"):
                await store.get("key", 5)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert await store.get("key", 5) == b"12345"


@pytest.mark.parametrize(
    ("code", "from_store", "shortage"),
    [
        (errno.EMFILE, True, True),
        (errno.ENOMEM, True, True),
        (errno.EAGAIN, False, True),
        (errno.EAGAIN, True, False),  # it asks to try again
        (errno.EIO, False, False),
    ],
)
def test_shortage_is_found_wherever_it_hides(code: int, from_store: bool, shortage: bool):
    error = TransientError("above") if from_store else ValueError("above")
    error.__cause__ = OSError(code, "below")
    assert is_shortage(error) == shortage
