"""Whose memory a batch is, and what altered records do to it: records whose features agree."""

import contextlib
import gc
import itertools
import random

import pytest

from cachecd_client import _core
from cachecd_client._core import BatchReader
from cachecd_client.errors import SchemaError
from tests.core.shards import batches, reader_of, write


def items(data, offsets):
    return [bytes(data[a:b]) for a, b in itertools.pairwise(offsets)]


def arrays(batch):
    for column in batch.values():
        yield from column if isinstance(column, tuple) else (column,)


MIXED = [
    ("d", "bytes", "uint8", (11,), True),
    ("b", "bytes", "bytes", (), False),
    ("l", "bytes", "bytes", None, False),
    ("r", "int64", "int64", None, False),
]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    records = [
        {"d": bytes([n % 256]) * 11, "b": b"%d" % n, "l": [b"%d" % n] * (n % 4), "r": [n] * (n % 3)}
        for n in range(300)
    ]
    path = tmp_path_factory.mktemp("mixed") / "a"
    return write(path, [_core.encode_example(record) for record in records])


def tells(batch, first):
    rows = range(first, first + len(batch["d"]))
    data, offsets, _ = batch["l"]
    return (
        [set(row) for row in batch["d"].tolist()] == [{n % 256} for n in rows]
        and items(*batch["b"]) == [b"%d" % n for n in rows]
        and items(data, offsets) == [b"%d" % n for n in rows for _ in range(n % 4)]
        and batch["r"][0].tolist() == [n for n in rows for _ in range(n % 3)]
    )


def test_every_array_is_aligned_writable_and_contiguous(mixed):
    options = {"batch_size": 7, "last": "pad", "ids": True}
    for batch in batches(reader_of(mixed, MIXED, **options)):
        for array in arrays(batch):
            assert array.ctypes.data % 64 == 0
            assert array.flags.writeable
            assert array.flags.c_contiguous


def test_kept_batches_keep_their_values_whatever_becomes_of_others(mixed):
    reader = reader_of(mixed, MIXED, batch_size=10, shuffle=False, threads=3)
    first, *kept = batches(reader)
    reader.close()
    del reader
    gc.collect()
    for array in arrays(first):
        array[...] = 77
    assert all(tells(batch, 10 * number) for number, batch in enumerate(kept, 1))


@pytest.mark.parametrize("rows", [2**50, 2**61, 2**64 - 1])
@pytest.mark.parametrize("features", [[], MIXED[:1], MIXED[1:2], MIXED[2:3], MIXED[3:]])
def test_a_batch_of_impossibly_many_rows_is_a_memory_error(mixed, rows, features):
    reader = reader_of(mixed, features, batch_size=rows, last="pad", ids=True)
    with pytest.raises(MemoryError):
        reader.next()


def columns_of(decoded):
    """What the columns of MIXED hold of a decoded record, or None if it does not fit them."""
    (dense_kind, dense), (bytes_kind, whole) = (decoded.get(name, ("", [])) for name in "db")
    lists_kind, lists = decoded.get("l", ("bytes", []))
    ints_kind, ints = decoded.get("r", ("int64", []))
    if [dense_kind, bytes_kind, lists_kind, ints_kind] != ["bytes", "bytes", "bytes", "int64"]:
        return None
    if len(dense) != 1 or len(dense[0]) != 11 or len(whole) != 1:
        return None
    return dense[0], whole[0], lists, ints


def test_altered_records_with_right_crcs_are_read_as_decoded_or_refused(mixed, tmp_path):
    source = random.Random(3)
    good = _core.read_record(str(mixed), int(_core.scan(str(mixed))[7]))
    records = []
    for _ in range(1500):
        record = bytearray(good)
        for _ in range(source.randint(1, 2)):
            record[source.randrange(len(record))] = source.randrange(256)
        records.append(bytes(record))
    files = [(str(write(tmp_path / "a", records)), None)]
    read = refused = 0
    for number, record in enumerate(records):
        reader = BatchReader(
            files, MIXED, batch_size=1, shuffle=False, start=number, threads=1, prefetch_bytes=0
        )
        try:
            expected = columns_of(_core.decode_example(record))
        except ValueError:
            # The reader does not look into features that nobody asks for.
            with contextlib.suppress(SchemaError):
                reader.next()
            continue
        if expected is None:
            with pytest.raises(SchemaError):
                reader.next()
            refused += 1
        else:
            batch = reader.next()
            data, offsets, _ = batch["l"]
            found = (
                batch["d"].tobytes(),
                items(*batch["b"])[0],
                items(data, offsets),
                batch["r"][0].tolist(),
            )
            assert found == expected
            read += 1
    assert min(read, refused) > 30
