"""What the tests of a faulty source share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import scripted
from tests.faults.source import sign_in
from tests.scripted import ScriptedServer, scripted_server


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The credentials of tests.faults.source, and nothing else of AWS or of proxies."""
    return sign_in(monkeypatch)


@pytest.fixture
def server(environ: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    """A store with one sound object, s3://b/good."""
    with scripted_server() as server:
        server.script["/b/good"] = [scripted.body(b"good")]
        yield server
