"""Fetching ahead: order, bounds, and what is not fetched at all."""

from __future__ import annotations

import asyncio

import pytest

from cachecd.errors import UnitError
from cachecd.sampler.read_ahead import PIECE, ReadAhead, Span, in_pieces

Asked = tuple[int, int, int]


class Fetcher:
    """Answers requests when told to. `asked` are all so far, `open` those not yet answered."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.open: dict[Asked, asyncio.Future[bytes]] = {}
        self.most = 0

    async def fetch(self, index: int, start: int, stop: int) -> bytes:
        asked = (index, start, stop)
        self.asked.append(asked)
        self.open[asked] = asyncio.get_running_loop().create_future()
        self.most = max(self.most, len(self.open))
        try:
            return await self.open[asked]
        finally:
            del self.open[asked]

    def answer(self, *asked: Asked) -> None:
        for one in asked or list(self.open):
            self.open[one].set_result(f"{one[0]}:{one[1]}-{one[2]}".encode())


def spans(*sizes: int) -> list[Span | None]:
    return [(0, size) for size in sizes]


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def everything(reader: ReadAhead, count: int) -> list[bytes]:
    return [bytes(chunk) for index in range(count) async for chunk in reader.chunks(index)]


async def test_pieces_come_in_order_whatever_arrives_first():
    fetcher = Fetcher()
    reader = ReadAhead(spans(25, 0, 10), fetcher.fetch, 8, lambda: 1000, piece=10)
    result = asyncio.create_task(everything(reader, 3))
    await settle()
    for asked in reversed(fetcher.asked):
        fetcher.answer(asked)
        await settle()
    assert await result == [b"0:0-10", b"0:10-20", b"0:20-25", b"1:0-0", b"2:0-10"]


async def test_no_more_requests_run_at_once_than_connections():
    fetcher = Fetcher()
    reader = ReadAhead(spans(*[1] * 50), fetcher.fetch, 3, lambda: 1000)
    result = asyncio.create_task(everything(reader, 50))
    while not result.done():
        await settle()
        fetcher.answer(*list(fetcher.open)[-1:])
    assert len(await result) == 50
    assert fetcher.most == 3


@pytest.mark.parametrize(("window", "wanted"), [(39, 1000), (1000, 39)])
async def test_no_more_is_held_than_the_window_nor_asked_for_than_wanted(window: int, wanted: int):
    fetcher = Fetcher()
    reader = ReadAhead(spans(*[10] * 20), fetcher.fetch, 99, lambda: wanted, window=window)
    result = asyncio.create_task(everything(reader, 20))
    await settle()
    assert len(fetcher.asked) == 3
    fetcher.answer((1, 0, 10), (2, 0, 10))
    await settle()
    assert len(fetcher.asked) == 3, "what has not been taken is still held"
    fetcher.answer((0, 0, 10))
    await settle()
    assert len(fetcher.asked) == 6
    result.cancel()


async def test_a_span_that_is_left_gives_its_room_to_the_others():
    fetcher = Fetcher()
    reader = ReadAhead(spans(90, 90), fetcher.fetch, 9, lambda: 40, lanes=2, piece=10)
    taken = asyncio.ensure_future(anext(reader.chunks(0)))
    other = asyncio.ensure_future(anext(reader.chunks(1)))
    await settle()
    reader.leave(0)
    await settle()
    assert {index for index, _, _ in fetcher.open} == {1}
    assert await reader.take(0) is None
    assert taken.cancelled()
    other.cancel()


async def test_a_failure_is_raised_where_its_turn_is_and_the_others_go_on():
    async def fetch(index: int, start: int, stop: int) -> bytes:
        if index == 1:
            raise UnitError("gone")
        return b"fine"

    reader = ReadAhead(spans(10, 10, 10), fetch, 8, lambda: 1000)
    assert [chunk async for chunk in reader.chunks(0)] == [b"fine"]
    for _ in range(2):
        with pytest.raises(UnitError, match="gone"):
            await anext(reader.chunks(1))
    assert [chunk async for chunk in reader.chunks(2)] == [b"fine"]
    assert reader.used == 20


async def test_closing_cancels_what_runs_and_starts_nothing():
    fetcher = Fetcher()
    reader = ReadAhead(spans(*[10] * 9), fetcher.fetch, 3, lambda: 1000)
    waiting = asyncio.ensure_future(anext(reader.chunks(0)))
    await settle()
    reader.close()
    await settle()
    assert waiting.cancelled()
    assert not fetcher.open
    assert len(fetcher.asked) == 3


async def test_a_large_read_is_several_requests_whose_bytes_come_in_order():
    async def fetch(start: int, stop: int) -> bytes:
        await asyncio.sleep(0 if start else 0.01)
        return bytes([start // PIECE]) * (stop - start)

    found = await in_pieces(fetch, 0, 2 * PIECE + 5)
    assert found == bytes(PIECE) + bytes([1]) * PIECE + bytes([2]) * 5
