"""Credentials that live for seconds, and sources of credentials that fail."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from cachecd.errors import SourceUnreachableError
from tests import scripted
from tests.contracts.store import get
from tests.faults.source import QUICK, opened, without_secrets
from tests.scripted import ScriptedServer

LIFE = 0.8  # seconds; STS gives 15 minutes at the least
_USED = re.compile(r"Credential=(\w+)/")

# A real `credential_process`: it numbers its keys, notes each call, and does as it is told.
PROCESS = """
import datetime, json, pathlib, sys
calls, how = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[1] + ".how")
with calls.open("a") as file:
    file.write("x")
if how.exists():
    sys.stderr.write("token=FwoGZXIvYXdzEBYaDHqa0AP1234567890 refused\\n")
    sys.exit(how.read_text())
life = datetime.timedelta(seconds=float(sys.argv[2]))
until = datetime.datetime.now(datetime.timezone.utc) + life
print(json.dumps({
    "Version": 1, "AccessKeyId": "KEY%d" % calls.stat().st_size,
    "SecretAccessKey": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "SessionToken": "TOKEN",
    "Expiration": until.isoformat(),
}))
"""


class Keys:
    """A profile whose keys come from the process; `issued` says how often it has run."""

    def __init__(self, folder: Path, environ: pytest.MonkeyPatch) -> None:
        self._calls = folder / "calls"
        self._calls.touch()
        (folder / "process.py").write_text(PROCESS)
        command = f"{sys.executable} -S {folder / 'process.py'} {self._calls} {LIFE}"
        (folder / "config").write_text(f"[default]\ncredential_process = {command}\n")
        environ.setenv("AWS_CONFIG_FILE", str(folder / "config"))
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            environ.delenv(name)

    @property
    def issued(self) -> int:
        return self._calls.stat().st_size

    def fail(self) -> None:
        self._calls.with_name("calls.how").write_text("no")


@pytest.fixture
def keys(tmp_path: Path, environ: pytest.MonkeyPatch) -> Keys:
    return Keys(tmp_path, environ)


def test_keys_that_live_for_less_than_a_second_are_renewed_before_they_expire(
    server: ScriptedServer, keys: Keys
):
    """The server refuses keys older than LIFE, as the real one does; nobody may ever notice."""
    first_seen: dict[str, float] = {}
    refused = 0

    def strict(handler: BaseHTTPRequestHandler) -> None:
        nonlocal refused
        used = _USED.search(handler.headers["Authorization"])
        assert used is not None
        now = time.monotonic()
        if now - first_seen.setdefault(used[1], now) > LIFE:
            refused += 1
            scripted.refusal(400, "ExpiredToken")(handler)
        else:
            scripted.body(b"12345")(handler)

    server.script["/b/key"] = [strict]
    store = opened(server.endpoint)

    async def for_a_while() -> int:
        reads, began = 0, time.monotonic()
        while time.monotonic() - began < 2.5 * LIFE:
            bodies = await asyncio.gather(*(store.get("key", 5) for _ in range(4)))
            assert {bytes(body) for body in bodies} == {b"12345"}
            reads += len(bodies)
        return reads

    reads = asyncio.run(for_a_while())
    assert len(first_seen) > 2
    assert refused == 0
    # Not one process for each request, though botocore renews all that expires within ten minutes.
    assert keys.issued <= len(first_seen) + 3 < reads


def test_a_process_that_goes_on_failing_is_the_stores_fault_and_is_not_quoted(
    server: ScriptedServer, keys: Keys
):
    server.script["/b/key"] = [scripted.body(b"12345")]
    store = opened(server.endpoint)
    assert get(store, "key", 5) == b"12345"
    keys.fail()
    before = keys.issued
    time.sleep(LIFE)  # what passes here is the life of the keys
    with pytest.raises(SourceUnreachableError, match=r"no credentials: .*custom-process") as caught:
        get(store, "key", 5)
    assert "FwoGZX" not in without_secrets(caught.value)
    assert keys.issued >= before + QUICK.tries  # each might have been a hiccup
