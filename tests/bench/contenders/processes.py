"""Python processes that parse records and hand batches over through multiprocessing.shared_memory.

The other way out of the GIL. The processes do per record what our core does in native threads, with
the fastest parts that Python has for it: the file is mapped, and checking and decoding are native.
"""

from __future__ import annotations

import mmap
import multiprocessing
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachecd_client import _core
from cachecd_client.loader.columns import Bytes
from tests.bench.contenders.contract import Contender
from tests.bench.data import RecordSet
from tests.bench.delivery import Batch, Passes

_WORKERS = 2
_SLOTS = 3  # of each process: one with the consumer, two made ahead
_HEADER, _FOOTER = 12, 4  # of a TFRecord frame: length and its CRC; the payload's CRC
_ALIGNMENT = 64
_LISTS_BYTES = 1200  # of a mixed record's string and list, at most

Column = tuple[str, str, tuple[int, ...], int]  # name, dtype, shape, offset in the memory


class SharedMemoryProcesses(Contender):
    """Two processes fill slots of one shared memory; batches are NumPy arrays over a slot.

    Nothing is copied when a batch is handed over, and so its arrays hold until the next one only.
    """

    name = f"shared_memory:{_WORKERS} processes"
    shuffled = "over the whole set"
    checked = "the data CRC of every record"

    @contextmanager
    def open(self, records: RecordSet) -> Iterator[Passes]:
        context = multiprocessing.get_context("fork")
        each = records.case.image_bytes + 8 + records.case.mixed * _LISTS_BYTES
        slot_bytes = (records.batch_size * each // 4096 + 2) * 4096  # columns are aligned
        memory = SharedMemory(create=True, size=_WORKERS * _SLOTS * slot_bytes)
        pipes: list[Connection] = []
        processes = []
        try:
            for worker in range(_WORKERS):
                ours, theirs = context.Pipe()
                slots = [(worker * _SLOTS + i) * slot_bytes for i in range(_SLOTS)]
                arguments = records, theirs, memory, slots
                processes.append(context.Process(target=_work, args=arguments, daemon=True))
                processes[-1].start()
                theirs.close()
                pipes.append(ours)
            number = iter(range(1 << 62))
            yield lambda: _pass(next(number), records, memory, pipes)
        finally:
            for process in processes:
                process.kill()
                process.join()
            memory.unlink()


def _pass(
    number: int, records: RecordSet, memory: SharedMemory, pipes: list[Connection]
) -> Iterator[Batch]:
    """Takes batches from the processes by turns; a slot goes back when the next batch is asked for."""
    order = np.random.default_rng().permutation(records.num_records)
    batches = order.reshape(-1, records.batch_size)
    for worker, pipe in enumerate(pipes):
        pipe.send((number, batches[worker :: len(pipes)]))
    for turn in range(len(batches)):
        pipe = pipes[turn % len(pipes)]
        slot, columns = _receive(pipe, number)
        views: dict[str, NDArray[Any]] = {
            name: np.ndarray(shape, dtype, memory.buf, offset)
            for name, dtype, shape, offset in columns
        }
        batch: Batch = {"image": views["image"], "label": views["label"]}
        if records.case.mixed:
            batch["scores"] = views["scores"], views["scores.splits"]
            batch["name"] = Bytes(views["name"], views["name.offsets"])
        yield batch
        pipe.send(slot)


def _receive(pipe: Connection, number: int) -> tuple[int, list[Column]]:
    """The next batch of this pass; those of a pass that was broken off are still on their way."""
    while True:
        of, slot, columns = pipe.recv()
        if of == number:
            return slot, columns


def _work(records: RecordSet, pipe: Connection, memory: SharedMemory, slots: list[int]) -> None:
    shards = _Shards(records)
    number, free = -1, deque[int]()
    todo = deque[NDArray[np.int64]]()
    while True:
        if free and todo and not pipe.poll():
            slot = free.popleft()
            pipe.send((number, slot, _fill(_Slot(memory, slot), shards, todo.popleft())))
            continue
        try:
            message = pipe.recv()
        except EOFError:
            return
        if isinstance(message, int):
            free.append(message)
        else:
            number, batches = message
            todo, free = deque(batches), deque(slots)


def _fill(slot: _Slot, shards: _Shards, numbers: NDArray[np.int64]) -> list[Column]:
    records, rows = shards.records, len(numbers)
    images = slot.array("image", np.uint8, (rows, records.case.image_bytes))
    labels = slot.array("label", np.int64, (rows,))
    strings, lists = [], []
    for row, number in enumerate(numbers):
        example = _core.decode_example(shards.read(int(number)))
        images[row] = np.frombuffer(example["image"][1][0], np.uint8)
        labels[row] = example["label"][1][0]
        if records.case.mixed:
            strings.append(example["name"][1][0])
            lists.append(example["scores"][1])
    if records.case.mixed:
        slot.put("name", np.frombuffer(b"".join(strings), np.uint8))
        slot.put("name.offsets", np.cumsum([0, *map(len, strings)]))
        slot.put("scores", np.concatenate([np.array(one, np.float32) for one in lists]))
        slot.put("scores.splits", np.cumsum([0, *map(len, lists)]))
    name, dtype, _, offset = slot.columns[0]
    slot.columns[0] = name, dtype, (rows, *records.case.shape), offset
    return slot.columns


class _Slot:
    def __init__(self, memory: SharedMemory, offset: int) -> None:
        self.columns: list[Column] = []
        self._memory = memory
        self._end = offset

    def array(self, name: str, dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        start = -(-self._end // _ALIGNMENT) * _ALIGNMENT
        made: NDArray[Any] = np.ndarray(shape, dtype, self._memory.buf, start)
        self._end = start + made.nbytes
        self.columns.append((name, made.dtype.str, shape, start))
        return made

    def put(self, name: str, array: NDArray[Any]) -> None:
        self.array(name, array.dtype, array.shape)[:] = array


class _Shards:
    def __init__(self, records: RecordSet) -> None:
        self.records = records
        self._shards = []
        self._firsts = []
        count = 0
        for path in records.files:
            offsets = _core.Sidecar.read(path + ".idx").offsets
            with open(path, "rb") as file:
                mapped = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
            self._shards.append((mapped, [*offsets.tolist(), len(mapped)]))
            self._firsts.append(count)
            count += len(offsets)
        self._shard_of = np.searchsorted(self._firsts, np.arange(count), "right") - 1

    def read(self, number: int) -> memoryview:
        """A record's payload, its CRC checked."""
        shard = self._shard_of[number]
        mapped, offsets = self._shards[shard]
        local = number - self._firsts[shard]
        start, end = offsets[local] + _HEADER, offsets[local + 1] - _FOOTER
        payload = mapped[start:end]
        if _core.masked_crc32c(payload) != int.from_bytes(mapped[end : end + _FOOTER], "little"):
            raise ValueError(f"record {number} is corrupt")
        return payload


CONTENDERS: list[Contender] = [SharedMemoryProcesses()]
