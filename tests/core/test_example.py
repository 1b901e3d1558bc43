"""The Example codec: values, wire forms, what is refused, and what hostile bytes may do."""

import math
import re
import struct
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecd_client import _core
from tests.core.shards import entry, field, varint, wire


def decode(record):
    """What decode_example makes of the record, and count_example counts."""
    try:
        decoded = _core.decode_example(record)
    except ValueError as error:
        with pytest.raises(ValueError, match=re.escape(str(error))):
            _core.count_example(record)
        raise
    counted = {name: (kind, len(values)) for name, (kind, values) in decoded.items()}
    assert _core.count_example(record) == counted
    return decoded


# Writing


def test_the_bytes_are_those_of_the_message_in_sorted_order():
    record = {"b": b"\x00\xff", "a": [1, -1], "c": 0.5}
    assert _core.encode_example(record) == wire(
        entry("a", field(3, field(1, b"\x01" + b"\xff" * 9 + b"\x01"))),
        entry("b", field(1, field(1, b"\x00\xff"))),
        entry("c", field(2, field(1, struct.pack("<f", 0.5)))),
    )


def test_equal_dicts_give_equal_bytes_whatever_their_order():
    record = {f"feature {i}": i for i in range(50)}
    assert _core.encode_example(record) == _core.encode_example(dict(reversed(record.items())))


@pytest.mark.parametrize(
    ("value", "decoded"),
    [
        (b"bytes", ("bytes", [b"bytes"])),
        ("tëxt", ("bytes", ["tëxt".encode()])),
        (memoryview(b"abcd")[1:3], ("bytes", [b"bc"])),
        (7, ("int64", [7])),
        (True, ("int64", [1])),
        (-(2**63), ("int64", [-(2**63)])),
        (2**63 - 1, ("int64", [2**63 - 1])),
        (1.5, ("float", [1.5])),
        (math.inf, ("float", [math.inf])),
        ((1, 2), ("int64", [1, 2])),
        (np.int64(5), ("int64", [5])),
        (np.float64(0.25), ("float", [0.25])),
        (np.array([3, 1, 2], np.int64), ("int64", [3, 1, 2])),
        (np.array([3, 1, 2], np.float32), ("float", [3, 1, 2])),
        (np.arange(6, dtype=np.int64)[::2], ("int64", [0, 2, 4])),
        (np.array([1, 2], ">i8"), ("int64", [1, 2])),
        (np.array([], np.int64), ("int64", [])),
    ],
)
def test_a_value_becomes_the_list_of_its_kind(value, decoded):
    assert decode(_core.encode_example({"x": value})) == {"x": decoded}


def test_an_array_that_another_thread_changes_meanwhile_is_refused_or_written_whole():
    numbers, over = np.zeros(200_000, np.int64), threading.Event()

    def change():
        while not over.is_set():
            numbers[:] = ~numbers  # one byte each, or ten

    thread, refused = threading.Thread(target=change), None
    thread.start()
    try:
        deadline = time.monotonic() + 60
        while refused is None and time.monotonic() < deadline:
            try:
                ((_, found),) = decode(_core.encode_example({"x": numbers})).values()
            except RuntimeError as error:
                refused = str(error)
            else:
                assert len(found) == len(numbers)
    finally:
        over.set()
        thread.join()
    assert refused is not None
    assert "feature 'x': its array was changed while it was encoded" in refused


LISTLESS = [None, object(), {"a": 1}, {1}, 2**63, -(2**63) - 1, [1, 2.0], [1, b"a"], ["a", None]]
LISTLESS += [[[1]], 1j, np.array([1], np.int32), np.array([1.0], np.float64)]
LISTLESS += [np.array([[1]], np.int64), np.array(["a"]), np.array([None])]


@pytest.mark.parametrize("value", LISTLESS)
def test_what_has_no_list_is_a_type_error_that_names_the_feature(value):
    with pytest.raises(TypeError, match="feature 'x'"):
        _core.encode_example({"ok": 1, "x": value})


kinds = (
    st.lists(st.binary(max_size=30), min_size=1, max_size=5)
    | st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20)
    | st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=20)
)


@given(st.dictionaries(st.text(max_size=8), kinds, max_size=8))
def test_what_is_encoded_is_decoded(record):
    decoded = decode(_core.encode_example(record))
    assert {name: values for name, (_, values) in decoded.items()} == record


# Reading what others write


UNPACKED_INTS = b"\x08\x01" + b"\x08" + varint(-2)
UNPACKED_FLOATS = b"\x0d" + struct.pack("<f", 1.5) + b"\x0d" + struct.pack("<f", -2)


@pytest.mark.parametrize(
    ("feature", "decoded"),
    [
        (field(3, UNPACKED_INTS), ("int64", [1, -2])),
        (field(2, UNPACKED_FLOATS), ("float", [1.5, -2])),
        # Packed and not within one list, and a list in two packed parts.
        (field(3, field(1, b"\x05\x06") + UNPACKED_INTS), ("int64", [5, 6, 1, -2])),
        (field(3, field(1, b"\x05") + field(1, b"\x06")), ("int64", [5, 6])),
        # A list that comes twice is merged; another kind replaces it.
        (field(3, field(1, b"\x05")) + field(3, field(1, b"\x06")), ("int64", [5, 6])),
        (field(3, field(1, b"\x05")) + field(1, field(1, b"a")), ("bytes", [b"a"])),
        (
            field(1, field(1, b"a")) + field(3, field(1, b"\x05")) + field(1, field(1, b"b")),
            ("bytes", [b"b"]),
        ),
        # Unknown fields of every wire type, a group with a field of the list's number among them.
        (
            b"\x78\x05"
            + b"\x79"
            + bytes(8)
            + field(15, b"?")
            + b"\x7d"
            + bytes(4)
            + b"\x7b\x1a\x00\x7c"
            + field(3, b"\x10\x07" + field(1, b"\x05")),
            ("int64", [5]),
        ),
        (field(1, b""), ("bytes", [])),
        (field(3, field(1, b"")), ("int64", [])),
    ],
)
def test_every_wire_form_of_a_list_is_read(feature, decoded):
    assert decode(wire(entry("x", feature))) == {"x": decoded}


def test_two_entries_of_one_name_are_refused_if_they_differ():
    one, two = field(3, field(1, b"\x01")), field(1, field(1, b"two"))
    assert decode(wire(entry("x", two), entry("x", two))) == {"x": ("bytes", [b"two"])}
    with pytest.raises(ValueError, match="feature 'x' occurs twice, with different values"):
        decode(wire(entry("x", one), entry("x", two)))


# Hostile bytes


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (b"\x0a\x05", "a length exceeds the enclosing message at byte 2"),
        (b"\x0a" + varint(2**64 - 1) + b"x", "a length exceeds"),
        (b"\x0a", "a number is cut short at byte 1"),
        (b"\x80" * 11, "longer than ten bytes"),
        (b"\x00", "impossible tag"),
        (b"\x0c", "impossible wire type"),
        (varint(2**35 << 3 | 2) + b"\x00", "impossible tag"),
        (b"\x7b", "cut short"),
        (b"\x7b\x74", "a group ends that did not begin"),
        (b"\x7b" * 101, "nested too deeply"),
        (wire(entry("x", field(3, field(1, b"\x80")))), "cut short"),
        (wire(entry("x", field(2, field(1, b"abc")))), "not a multiple of four"),
        (wire(field(1, field(2, b"") + field(2, b""))), "two values"),
    ],
)
def test_malformed_records_are_refused_with_the_byte(record, why):
    with pytest.raises(ValueError, match=rf"not a tf.train.Example: .*{why}"):
        decode(record)


def test_a_sequence_example_is_refused_by_name_and_another_unknown_field_skipped():
    example = _core.encode_example({"id": 1})
    for unknown in (b"\x10\x05", b"\x15" + bytes(4), field(3, b"lists")):  # 2: not length-delimited
        assert decode(example + unknown) == {"id": ("int64", [1])}
    with pytest.raises(
        ValueError, match=r"a tf.train.SequenceExample \(feature_lists\), .* not supp"
    ):
        decode(field(2, field(1, field(1, b"frames") + field(2, b""))) + example)


def test_a_name_that_is_not_utf_8_is_refused():
    bad = wire(field(1, field(1, b"\xff") + field(2, field(3, field(1, b"\x01")))))
    with pytest.raises(ValueError, match="utf-8"):
        decode(bad)
