"""What tests of all parts share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stores import S3Server, s3_server


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """A real S3 server for the whole session: .endpoint, .environ, .client, .bucket(name), .put()."""
    with s3_server() as server:
        yield server
