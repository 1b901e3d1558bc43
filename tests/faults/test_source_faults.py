"""A store that does everything wrong: what each fault costs, what is said of it, and what is not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from cachecd.config import SourceConfig
from cachecd.errors import SourceUnreachableError, UnitError
from cachecd.model import ObjectInfo
from cachecd.stores.backend import TransientError
from cachecd.stores.fetch import Store
from cachecd.stores.retry import Retry
from cachecd.units.unit_store import open_unit_store
from tests import scripted
from tests.contracts.store import get
from tests.faults.source import HASTY, QUICK, opened, without_secrets
from tests.scripted import Answer, ScriptedServer

BODY = bytes(range(256)) * 40


async def good_then(store: Store, key: str = "key", size: int = len(BODY)) -> bytes:
    assert bytes(await store.get("good", 4)) == b"good"
    return bytes(await store.get(key, size, '"tag"'))


Fault = Callable[[ScriptedServer], Answer]
PASSING: dict[str, Fault] = {
    "silent": scripted.silent,
    "drip": lambda server: scripted.drip(server, len(BODY), 0.02),
    "short": lambda _: scripted.cut(BODY[:99], len(BODY)),
    "chunked and cut": lambda _: scripted.chunked(BODY[:99], whole=False),
    "hang-up": lambda _: scripted.hang_up,
    "403": lambda _: scripted.refusal(403, "AccessDenied"),
    "429": lambda _: scripted.refusal(429, "TooManyRequests"),
    "500": lambda _: scripted.refusal(500, "InternalError"),
    "503": lambda _: scripted.refusal(503, "SlowDown"),
    "expired": lambda _: scripted.refusal(400, "ExpiredToken"),
    "elsewhere": lambda _: scripted.redirect(307, "http://127.0.0.1:1/b/key?Signature=x"),
    "echo": lambda _: scripted.echo(500),
}
REASONS = {
    "500": "the store answers 500 InternalError",
    "503": "the store is throttling (503 SlowDown",
    "expired": "the credentials have expired",
    "short": "the connection broke",
    "hang-up": "the connection broke",
}


def retry_for(name: str) -> Retry:
    return HASTY if name in ("silent", "drip") else QUICK


def store_for(name: str, server: ScriptedServer) -> Store:
    return opened(server.endpoint, retry=retry_for(name))


@pytest.mark.parametrize("name", PASSING)
def test_what_passes_costs_a_retry_and_nothing_else(server: ScriptedServer, name: str):
    trouble = [PASSING[name](server)] * (retry_for(name).tries - 1)
    server.script["/b/key"] = [*trouble, scripted.body(BODY)]
    assert asyncio.run(good_then(store_for(name, server))) == BODY
    assert server.asked.count("/b/key") > len(trouble)


@pytest.mark.parametrize("name", PASSING)
def test_what_stays_with_one_object_sets_it_aside_unless_it_is_throttling(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, name: str
):
    monkeypatch.setattr("cachecd.stores.fetch._PROOFS", 1)
    server.script["/b/key"] = [PASSING[name](server)]
    expected = SourceUnreachableError if name in ("429", "503") else UnitError
    with pytest.raises(expected) as caught:
        asyncio.run(good_then(store_for(name, server)))
    without_secrets(caught.value)
    if isinstance(caught.value, UnitError):
        assert caught.value.passing
        assert re.search("[2346] tries in .* while other objects can be read", str(caught.value))
    else:
        assert "throttling" in str(caught.value)


@pytest.mark.parametrize("name", PASSING)
def test_what_stays_with_all_objects_sets_none_aside(server: ScriptedServer, name: str):
    listing = "/b?list-type=2&prefix=&max-keys=10&encoding-type=url"
    for path in ("/b/key", "/b/good", listing):
        server.script[path] = [PASSING[name](server)]
    with pytest.raises(SourceUnreachableError, match=r"^s3://b/ at http://127.*tries in") as caught:
        get(store_for(name, server), "key", len(BODY), '"tag"')
    without_secrets(caught.value)
    assert REASONS.get(name, "") in str(caught.value)


PLAIN: dict[str, tuple[Answer, str]] = {
    "404": (scripted.refusal(404, "NoSuchKey"), "deleted after it was listed"),
    "412": (scripted.refusal(412, "PreconditionFailed"), "changed since it was listed"),
    "archived": (scripted.refusal(403, "InvalidObjectState"), "archived: restore it first"),
    "416": (scripted.refusal(416, "InvalidRange"), "shorter"),
    "endless": (scripted.endless, f"{1 << 40} bytes, {len(BODY)} were listed"),
    "longer": (scripted.body(BODY + b"x"), f"{len(BODY) + 1} bytes, {len(BODY)} were listed"),
    "another": (scripted.body(BODY, etag='"new"'), "changed"),
}


@pytest.mark.parametrize("name", PLAIN)
def test_what_is_plainly_the_objects_is_set_aside_at_once(server: ScriptedServer, name: str):
    answer, reason = PLAIN[name]
    server.script["/b/key"] = [answer]
    with pytest.raises(UnitError, match=reason) as caught:
        asyncio.run(good_then(opened(server.endpoint)))
    assert not caught.value.passing
    assert server.asked.count("/b/key") == 1


def test_an_object_replaced_while_it_is_read_in_ranges_is_not_mixed(server: ScriptedServer):
    old, new = scripted.body(BODY), scripted.body(BODY[::-1], etag='"new"')  # deaf to If-Match
    server.script["/b/key"] = [old, new]
    store = opened(server.endpoint)

    async def pieces() -> None:
        assert bytes(await store.get("good", 4)) == b"good"
        half = len(BODY) // 2
        first = await store.get("key", len(BODY), '"tag"', 0, half)
        assert bytes(first) == BODY[:half]
        await store.get("key", len(BODY), '"tag"', half, len(BODY))

    with pytest.raises(UnitError, match="changed since it was listed"):
        asyncio.run(pieces())


def test_a_store_that_has_lost_everything_is_the_wrong_place_and_sets_nothing_aside(
    server: ScriptedServer,
):
    with pytest.raises(SourceUnreachableError, match=r"deleted .* and no other object can be read"):
        get(opened(server.endpoint), "key", 5)


def test_a_folder_that_is_no_longer_mounted_sets_nothing_aside(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"b")
    config = SourceConfig.model_validate({"url": tmp_path.as_uri(), "format": "files"})
    store = open_unit_store(config, 2, QUICK)
    assert get(store, "a", 1) == b"a"
    (tmp_path / "a").unlink()
    with pytest.raises(UnitError, match="No such file"):
        get(store, "a", 1)
    (tmp_path / "b").unlink()  # what an empty mount point looks like
    with pytest.raises(SourceUnreachableError, match="and no other object can be read"):
        get(store, "b", 1)


def test_a_first_object_that_fails_is_found_out_though_no_other_was_read_yet(
    server: ScriptedServer,
):
    server.script["/b/key"] = [scripted.refusal(500, "InternalError")]
    listed = "".join(
        f"<Contents><Key>{key}</Key><Size>4</Size></Contents>" for key in ("key", "good")
    )
    page = f"<ListBucketResult><Name>b</Name>{listed}</ListBucketResult>".encode()
    server.script["/b?list-type=2&prefix=&max-keys=10&encoding-type=url"] = [scripted.body(page)]
    with pytest.raises(UnitError, match="while other objects can be read"):
        get(opened(server.endpoint), "key", 4)


def test_when_all_fails_retries_do_not_multiply_the_load(server: ScriptedServer):
    reads = 150
    for number in range(reads):
        server.script[f"/b/{number}"] = [scripted.refusal(500, "InternalError")]
    # As long as there is money for it, each would be tried 7 times.
    store = opened(server.endpoint, 16, Retry(tries=7, within=30, first=0.0001, longest=0.001))

    async def all_of_them() -> list[BaseException | object]:
        slots = asyncio.Semaphore(16)

        async def one(number: int) -> object:
            async with slots:
                return await store.get(str(number), 5)

        return await asyncio.gather(*map(one, range(reads)), return_exceptions=True)

    began = time.monotonic()
    results = asyncio.run(all_of_them())
    seconds = time.monotonic() - began
    assert {type(result) for result in results} == {SourceUnreachableError}
    asked = sum(count for path, count in Counter(server.asked).items() if "list-type" not in path)
    assert asked <= reads + 100 + seconds + 1
    looks = len(server.asked) - asked
    assert looks <= reads


class Limited:
    """A store that serves four at a time and refuses more; `met` is how many were there, by request."""

    where = "limited"

    def __init__(self) -> None:
        self.inside = 0
        self.met: list[int] = []

    def list(self) -> Iterator[list[ObjectInfo]]:
        yield from ()

    def glimpse(self) -> Sequence[ObjectInfo]:
        return []

    async def read(self, key: str, start: int, stop: int, size: int | None, etag: str) -> bytes:
        self.inside += 1
        self.met.append(met := self.inside)
        for _ in range(20):  # what serving takes
            await asyncio.sleep(0)
        self.inside -= 1
        if met > 4:
            raise TransientError("the store is throttling (503 SlowDown)", throttled=True)
        return b"12345"


def test_a_store_that_throttles_gets_fewer_requests_at_a_time_and_everything_is_read():
    limited, reads = Limited(), 400
    # No pauses: what spreads the requests is the pace alone.
    store = Store(limited, Retry(tries=7, within=30.0, first=0.0, longest=0.0), 32)

    async def all_of_them() -> list[bytes]:
        gets = (store.get(str(number), 5) for number in range(reads))
        return [bytes(body) for body in await asyncio.gather(*gets)]

    assert asyncio.run(all_of_them()) == [b"12345"] * reads
    assert limited.met[31] == 32  # at first, all at once
    later = sorted(limited.met[len(limited.met) // 4 :])
    assert later[len(later) // 2] <= 4
    assert later[-1] <= 8


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_heard_and_bounded(
    server: ScriptedServer, environ: pytest.MonkeyPatch, status: int
):
    environ.setattr("cachecd.stores.retry.Pace.LONGEST", 0.3)
    refusal = scripted.refusal(status, "SlowDown", Retry_After="3600")
    server.script["/b/key"] = [refusal, refusal, scripted.body(BODY)]
    began = time.monotonic()
    retry = Retry(tries=7, first=0.001, longest=0.001)
    assert asyncio.run(good_then(opened(server.endpoint, retry=retry))) == BODY
    assert 0.3 <= time.monotonic() - began < 30
    assert server.asked.count("/b/key") == 3


def test_a_file_system_that_hangs_is_unreachable_and_not_waited_for_for_ever(tmp_path: Path):
    os.mkfifo(tmp_path / "key")  # opening it waits for a writer, as a dead file server's would
    config = SourceConfig.model_validate({"url": tmp_path.as_uri(), "format": "files"})
    store = open_unit_store(config, 1, HASTY)
    try:
        with pytest.raises(SourceUnreachableError, match="did not arrive within"):
            get(store, "key", 5)
    finally:
        for _ in range(20):  # lets the threads that hang there go
            with contextlib.suppress(OSError):
                os.close(os.open(tmp_path / "key", os.O_WRONLY | os.O_NONBLOCK))
            time.sleep(0.001)
