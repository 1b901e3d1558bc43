"""Buckets whose readers are billed."""

from __future__ import annotations

import contextlib

import pytest
from pydantic import ValidationError

from cachecd.config import SourceConfig
from cachecd.errors import SourceError
from cachecd.stores.retry import Retry
from cachecd.units.unit_store import open_unit_store
from tests import scripted
from tests.contracts.store import get, listed
from tests.scripted import scripted_server

HEADER = "x-amz-request-payer"
LISTING = (
    b"<ListBucketResult><Name>b</Name><IsTruncated>false</IsTruncated>"
    b'<Contents><Key>key</Key><Size>5</Size><ETag>"tag"</ETag></Contents></ListBucketResult>'
)


def test_every_request_says_that_the_requester_pays(monkeypatch: pytest.MonkeyPatch):
    """Listing, looking for another object, reading by obstore and by boto3."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    with scripted_server() as server:
        for most in (1000, 10):
            query = f"list-type=2&prefix=&max-keys={most}&encoding-type=url"
            server.script[f"/b?{query}"] = [scripted.body(LISTING)]
        server.script["/b/key"] = [scripted.refusal(503, "SlowDown"), scripted.body(b"12345")]
        source = {"url": "s3://b/", "format": "files", "endpoint": server.endpoint}
        config = SourceConfig.model_validate({**source, "requester_pays": True})
        store = open_unit_store(config, 2, Retry(tries=2, first=0.001))
        assert listed(store) == {"key": 5}
        assert get(store, "key", 5) == b"12345"  # the second time by boto3
        assert get(store, "key", 5) == b"12345"  # by obstore
        with contextlib.suppress(SourceError):
            get(store, "gone", 5)  # which has others looked for
        agents = {headers["user-agent"].partition("/")[0] for headers in server.headers}
        assert agents == {"Boto3", "object_store"}
        for headers in server.headers:
            assert headers[HEADER] == "requester"
            assert HEADER in headers["authorization"].partition("SignedHeaders=")[2]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ({"url": "gs://bucket/"}, "works only for s3://"),
        ({"url": "s3://bucket/", "anonymous": True}, "an anonymous request cannot be billed"),
    ],
)
def test_who_cannot_be_billed_is_refused(source: dict[str, object], reason: str):
    with pytest.raises(ValidationError, match=reason):
        SourceConfig.model_validate({**source, "format": "files", "requester_pays": True})
