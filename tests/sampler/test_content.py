"""What a format may read of a unit beside what is fetched ahead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from typing_extensions import Buffer

from cachecd.model import ObjectInfo, Unit
from cachecd.sampler.read_ahead import PIECE
from cachecd.sampler.sources.content import Content
from cachecd.stores.backend import GoneError

UNIT = Unit(3, "key", 10, "tag", offset=4, begin=100)


class Given:
    def __init__(self, get: Callable[[str, int | None, str, int, int], Awaitable[Buffer]]) -> None:
        self.get = get

    async def tail(self, key: str, length: int, etag: str) -> tuple[int, Buffer]:
        return 100, f"{key} {etag} {length}".encode()

    async def find(self, key: str) -> ObjectInfo:
        raise GoneError(key)


async def nothing() -> AsyncIterator[Buffer]:
    return
    yield b""


def test_a_large_read_is_several_requests_at_a_time_and_comes_in_order():
    asked: list[tuple[str, int | None, str, int, int]] = []
    all_asked = asyncio.Event()

    async def fetch(key: str, size: int | None, etag: str, start: int, stop: int) -> Buffer:
        asked.append((key, size, etag, start, stop))
        if len(asked) == 3:
            all_asked.set()
        await all_asked.wait()
        return bytes([start // PIECE]) * (stop - start)

    found = asyncio.run(Content(UNIT, nothing(), Given(fetch)).read(0, 2 * PIECE + 5))
    assert found == bytes(PIECE) + bytes([1]) * PIECE + bytes([2]) * 5
    assert asked[2] == ("key", None, "tag", 2 * PIECE, 2 * PIECE + 5)
