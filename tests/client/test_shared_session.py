"""One session, several threads: each lease is told held once and released once, and none is left."""

from __future__ import annotations

import random
import threading
from collections import Counter

import pytest

from cachecd_client.errors import CallerError
from cachecd_client.protocol import Acquire, Held, Released
from tests.client.conftest import lending, locked, politely


def run(count: int, work) -> None:
    """`work(number)` in so many threads at once; fails if one fails."""
    failures: list[BaseException] = []
    together = threading.Barrier(count)

    def guarded(number: int) -> None:
        try:
            together.wait(10)
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert failures == []


@pytest.fixture(autouse=True)
def manifests(granting, cache_dir):
    """Written once: those that are held must not change."""
    for number in range(10):
        cache_dir.manifest(f"train-{number}", shards=2 + number, epoch=number)
    folder = cache_dir.root / "leases"
    granting.answer = politely(lending(lambda request: folder / f"train-{request.epoch}.json"))


def test_threads_take_and_release_leases_of_one_session(cache, granting, manifest):
    def work(number: int) -> None:
        chance = random.Random(number)
        for _ in range(8):
            with cache.acquire("train", chance.randrange(4)) as epoch:
                assert locked(manifest(epoch.epoch))
                assert sum(len(b["key"]) for b in epoch.numpy(5)) == epoch.num_records

    run(4, work)
    held = Counter(request.lease for request in granting.of(Held))
    assert sum(held.values()) == 32
    assert Counter(request.lease for request in granting.of(Released)) == held
    assert not any(locked(manifest(number)) for number in range(4))


def test_a_session_closed_while_other_threads_take_leases_holds_none(cache, granting, manifest):
    def work(number: int) -> None:
        if number == 0:
            while len(granting.of(Held)) < 6:
                pass
            cache.close()
            return
        try:
            while True:
                cache.acquire("train", number)
        except CallerError as error:
            assert "this session is closed" in str(error)  # noqa: PT017

    run(4, work)
    assert not any(locked(manifest(number)) for number in range(1, 4))


def test_a_lease_granted_while_its_session_is_closed_is_released(cache, granting, manifest):
    grant = granting.answer

    def closing(request):
        if isinstance(request, Acquire):
            cache.close()
        return grant(request)

    granting.answer = closing
    with pytest.raises(CallerError, match="this session is closed"):
        cache.acquire("train", 1)
    assert not locked(manifest(1))
