"""What goes wrong with a store, and what is said about it."""

from __future__ import annotations

import asyncio
import random
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from cachecd.config import SourceConfig
from cachecd.errors import SourceError, SourceUnreachableError, UnitError
from cachecd.sampler.fetch import Store
from cachecd.sampler.opening import open_store
from cachecd.sampler.patience import Retry
from tests import scripted
from tests.contracts.store import get, listed
from tests.scripted import ScriptedServer, scripted_server
from tests.stores import SECRET_KEY, S3Server

NO_CREDENTIALS = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent/credentials",
    "AWS_CONFIG_FILE": "/nonexistent/config",
}


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No AWS variable but those that keep the machine's own credentials out."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in NO_CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def opened(url: str, endpoint: str, tries: int = 2, **more: object) -> Store:
    source = {"url": url, "format": "files", "endpoint": endpoint, **more}
    retry = Retry(tries=tries, first=0.001)
    return open_store(SourceConfig.model_validate(source), 8, retry)


def failure(store: Store, how: str) -> SourceError:
    """The error of listing or of reading an object."""
    with pytest.raises(SourceError) as caught:
        listed(store) if how == "list" else get(store, "key", 5)
    return caught.value


@pytest.mark.parametrize("how", ["list", "get"])
class TestUnreachable:
    """Each says what a person can act on, for the listing and for a read alike."""

    def expect(self, store: Store, how: str, reason: str) -> None:
        error = failure(store, how)
        assert isinstance(error, SourceUnreachableError)
        assert re.search(reason, str(error)), error
        assert str(error).startswith(f"{store.where}: ")

    def test_no_such_bucket(self, s3: S3Server, environ: pytest.MonkeyPatch, how: str):
        sign_in(environ, s3)
        self.expect(opened("s3://nobodys-bucket/x/", s3.endpoint), how, "no such bucket")

    def test_no_credentials(self, s3: S3Server, environ: pytest.MonkeyPatch, how: str):
        self.expect(
            opened("s3://bucket/", s3.endpoint),
            how,
            "no credentials found: looked in AWS_ACCESS_KEY_ID .* profile 'default' of "
            "/nonexistent/credentials .* `anonymous: true`",
        )

    def test_an_unknown_access_key(self, s3: S3Server, environ: pytest.MonkeyPatch, how: str):
        environ.setenv("AWS_ACCESS_KEY_ID", "nobody")
        environ.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
        self.expect(opened("s3://bucket/", s3.endpoint), how, "does not know the access key")

    def test_a_wrong_secret_key(self, s3: S3Server, environ: pytest.MonkeyPatch, how: str):
        sign_in(environ, s3)
        environ.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        self.expect(opened("s3://bucket/", s3.endpoint), how, "does not belong to the access key")

    def test_anonymous_where_that_is_not_allowed(
        self, s3: S3Server, environ: pytest.MonkeyPatch, how: str
    ):
        self.expect(opened("s3://bucket/", s3.endpoint, anonymous=True), how, "access denied .403")

    def test_nobody_listens(self, s3: S3Server, environ: pytest.MonkeyPatch, how: str):
        sign_in(environ, s3)
        store = opened("s3://bucket/", "http://127.0.0.1:1")
        self.expect(store, how, "at http://127.0.0.1:1: cannot connect to the store: .*refused")

    def test_a_host_that_does_not_exist(self, s3: S3Server, environ: pytest.MonkeyPatch, how: str):
        sign_in(environ, s3)
        store = opened("s3://bucket/", "http://nowhere.invalid:9000")
        self.expect(store, how, "nowhere.invalid:9000: cannot resolve the store's host name")


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
    environ.setattr("cachecd.sampler.stores.credentials.LIFE", 0.0)
    bucket = s3.bucket(f"renewed-{uuid.uuid4().hex}")
    s3.put(bucket, {"key": b"12345"})
    store = opened(f"s3://{bucket}/", s3.endpoint)
    assert "no credentials found" in str(failure(store, "get"))
    keys.write_text(
        f"[default]\naws_access_key_id = {s3.environ['AWS_ACCESS_KEY_ID']}\n"
        f"aws_secret_access_key = {s3.environ['AWS_SECRET_ACCESS_KEY']}\n"
    )
    assert get(store, "key", 5) == b"12345"


class TestOddKeys:
    """S3 allows keys that are no paths; SeaweedFS does not have them, so moto does."""

    @pytest.fixture(scope="class")
    @classmethod
    def endpoint(cls) -> Iterator[str]:
        server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
        server.stop()

    def test_are_listed_and_read(self, endpoint: str, environ: pytest.MonkeyPatch):
        environ.setenv("AWS_ACCESS_KEY_ID", "x")
        environ.setenv("AWS_SECRET_ACCESS_KEY", "y")
        client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
        client.create_bucket(Bucket="odd")
        keys = ["/lead", "a//b", "a/../b", "./c", "d/.", "e/", "plain"]
        for key in keys:
            client.put_object(Bucket="odd", Key=f"p/{key}", Body=key.encode())
        store = opened("s3://odd/p", endpoint)
        assert set(listed(store)) == set(keys)
        for key in keys:
            assert get(store, key, len(key)) == key.encode()


class TestScripted:
    @pytest.fixture
    def server(self, environ: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
        environ.setenv("AWS_ACCESS_KEY_ID", "x")
        environ.setenv("AWS_SECRET_ACCESS_KEY", "y")
        with scripted_server() as server:
            server.script["/b/good"] = [scripted.body(b"good")]
            yield server

    def store(self, server: ScriptedServer, tries: int = 3) -> Store:
        return opened("s3://b/", server.endpoint, tries)

    @pytest.mark.parametrize(
        "trouble",
        [
            scripted.refusal(500, "InternalError"),
            scripted.refusal(503, "SlowDown"),
            scripted.refusal(429, "TooManyRequests"),
            scripted.refusal(408, "RequestTimeout"),
            scripted.refusal(403, "AccessDenied"),
            scripted.refusal(400, "ExpiredToken"),
            scripted.cut(b"ab", promised=5),
            scripted.hang_up,
        ],
        ids=["500", "503", "429", "408", "403", "expired", "cut", "hang-up"],
    )
    def test_trouble_that_passes_is_not_noticed(
        self, server: ScriptedServer, trouble: scripted.Answer
    ):
        server.script["/b/key"] = [trouble, trouble, scripted.body(b"12345")]
        assert get(self.store(server), "key", 5) == b"12345"
        assert server.asked.count("/b/key") == 3

    @pytest.mark.parametrize(
        ("trouble", "reason"),
        [
            (scripted.refusal(500, "InternalError"), "the store answers 500 InternalError"),
            (scripted.refusal(503, "SlowDown"), "the store is throttling .503 SlowDown"),
            (scripted.refusal(400, "ExpiredToken"), "the credentials have expired"),
            (scripted.cut(b"ab", promised=5), "the connection broke"),
            (scripted.hang_up, "the connection broke"),
        ],
        ids=["500", "503", "expired", "cut", "hang-up"],
    )
    def test_trouble_that_stays_is_the_stores(
        self, server: ScriptedServer, trouble: scripted.Answer, reason: str
    ):
        server.script["/b/key"] = [trouble]
        with pytest.raises(SourceUnreachableError, match=f"s3://b/.*{reason}.*3 tries in"):
            get(self.store(server), "key", 5)
        assert server.asked.count("/b/key") == 3

    @pytest.mark.parametrize(
        "trouble",
        [
            scripted.refusal(403, "AccessDenied"),
            scripted.refusal(500, "InternalError"),
            scripted.cut(b"ab", promised=5),
        ],
        ids=["403", "500", "cut"],
    )
    def test_trouble_with_one_object_alone_is_the_objects(
        self, server: ScriptedServer, trouble: scripted.Answer
    ):
        server.script["/b/key"] = [trouble]
        store = self.store(server)

        async def both() -> None:
            await store.get("good", 4)
            await store.get("key", 5)

        with pytest.raises(UnitError, match=r"[346] tries in .* while other objects can be read"):
            asyncio.run(both())

    def test_throttling_is_never_blamed_on_an_object(self, server: ScriptedServer):
        server.script["/b/key"] = [scripted.refusal(503, "SlowDown")]
        store = self.store(server)

        async def both() -> None:
            await store.get("good", 4)
            await store.get("key", 5)

        with pytest.raises(SourceUnreachableError, match="throttling"):
            asyncio.run(both())

    @pytest.mark.parametrize(
        ("status", "code", "reason"),
        [
            (404, "NoSuchKey", "gone since it was listed"),
            (412, "PreconditionFailed", "changed since it was listed"),
            (403, "InvalidObjectState", "archived: restore it first"),
        ],
    )
    def test_what_is_plainly_the_objects_is_not_tried_again(
        self, server: ScriptedServer, status: int, code: str, reason: str
    ):
        server.script["/b/key"] = [scripted.refusal(status, code)]
        store = self.store(server)
        assert get(store, "good", 4) == b"good"
        with pytest.raises(UnitError, match=reason):
            get(store, "key", 5)
        assert server.asked.count("/b/key") == 1

    @pytest.mark.parametrize("how", ["list", "get"])
    @pytest.mark.parametrize(
        "answer",
        [
            scripted.refusal(301, "PermanentRedirect"),
            scripted.refusal(400, "AuthorizationHeaderMalformed"),
        ],
        ids=["301", "400"],
    )
    def test_a_bucket_in_another_region_names_the_remedy(
        self, server: ScriptedServer, answer: scripted.Answer, how: str
    ):
        for path in ("/b/key", "/b?list-type=2&prefix=&max-keys=1000&encoding-type=url"):
            server.script[path] = [answer]
        server.script["/b"] = [answer]
        error = failure(self.store(server), how)
        assert isinstance(error, SourceUnreachableError)
        assert "in another region" in str(error)
        assert "set `region`" in str(error)

    def test_the_body_of_a_refusal_is_not_quoted(self, server: ScriptedServer):
        server.script["/b/key"] = [scripted.refusal(403, "AccessDenied", "StringToSign: secret")]
        error = failure(self.store(server), "get")
        assert "AccessDenied" in str(error)
        assert "StringToSign" not in f"{error} {error.__cause__}"


def test_pauses_double_up_to_the_longest_and_are_spread_over_their_whole_span():
    retry = Retry(first=1.0, longest=4.0)
    for failures, span in [(1, 1), (2, 2), (3, 4), (4, 4), (9, 4)]:
        pauses = [retry.pause(failures, random.random()) for _ in range(300)]
        assert 0 <= min(pauses) < 0.2 * span
        assert 0.8 * span < max(pauses) <= span


def test_no_try_begins_after_the_time_is_up(environ: pytest.MonkeyPatch):
    environ.setenv("AWS_ACCESS_KEY_ID", "x")
    environ.setenv("AWS_SECRET_ACCESS_KEY", "y")
    with scripted_server() as server:
        server.script["/b/key"] = [scripted.refusal(500, "InternalError")]
        config = {"url": "s3://b/", "format": "files", "endpoint": server.endpoint}
        store = open_store(SourceConfig.model_validate(config), 1, Retry(tries=99, within=0.0))
        with pytest.raises(SourceUnreachableError, match="1 tries"):
            get(store, "key", 5)
        assert server.asked.count("/b/key") == 1
