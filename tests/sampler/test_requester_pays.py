"""Buckets whose readers are billed."""

from __future__ import annotations

import contextlib

import pytest
from pydantic import ValidationError

from cachecd.config import SourceConfig
from cachecd.errors import SourceError
from cachecd.sampler.opening import open_store
from cachecd.stores.retry import Retry
from tests import scripted
from tests.contracts.store import get, listed
from tests.scripted import ScriptedServer, scripted_server

HEADER = "x-amz-request-payer"
LISTING = (
    b"<ListBucketResult><Name>b</Name><IsTruncated>false</IsTruncated>"
    b'<Contents><Key>key</Key><Size>5</Size><ETag>"tag"</ETag></Contents></ListBucketResult>'
)


def ask_everything(server: ScriptedServer, **more: object) -> list[dict[str, str]]:
    """Lists, looks for another object, reads by obstore and by boto3; the headers of each request."""
    page = scripted.body(LISTING)
    for query in (
        "list-type=2&prefix=&max-keys=1000&encoding-type=url",
        "list-type=2&prefix=&max-keys=10&encoding-type=url",
    ):
        server.script[f"/b?{query}"] = [page]
    server.script["/b/key"] = [scripted.refusal(503, "SlowDown"), scripted.body(b"12345")]
    source = {"url": "s3://b/", "format": "files", "endpoint": server.endpoint, **more}
    store = open_store(SourceConfig.model_validate(source), 2, Retry(tries=2, first=0.001))
    assert listed(store) == {"key": 5}
    assert get(store, "key", 5) == b"12345"  # the second time by boto3
    assert get(store, "key", 5) == b"12345"  # by obstore
    with contextlib.suppress(SourceError):
        get(store, "gone", 5)  # which has others looked for
    assert {path.partition("?")[0] for path in server.asked} == {"/b", "/b/key", "/b/gone"}
    assert len(server.asked) >= 6
    agents = {headers["user-agent"].partition("/")[0] for headers in server.headers}
    assert agents == {"Boto3", "object_store"}
    return server.headers


@pytest.fixture(autouse=True)
def signed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")


def test_every_request_says_that_the_requester_pays():
    with scripted_server() as server:
        for headers in ask_everything(server, requester_pays=True):
            assert headers[HEADER] == "requester"
            assert HEADER in headers["authorization"].partition("SignedHeaders=")[2]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ({"url": "gs://bucket/"}, "found true for gs://, expected it for s3:// alone"),
        ({"url": "s3://bucket/", "anonymous": True}, "nobody can be billed"),
    ],
)
def test_who_cannot_be_billed_is_refused(source: dict[str, object], reason: str):
    with pytest.raises(ValidationError, match=reason):
        SourceConfig.model_validate({**source, "format": "files", "requester_pays": True})
