"""append_frames with a schema: which records are passed over, and how they are described."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecd_client import _core
from cachecd_client.errors import CorruptRecordError, SchemaError
from tests.core.shards import entry, field, frames, reader_of, varint, wire

SCHEMA = [
    ("ints", "int64", "int64", (2,), False),
    ("label", "int64", "int64", (), False, {"optional": True}),
    ("box", "float", "float32", (4,), False),
    ("names", "bytes", "bytes", (2,), False),
    ("list", "int64", "int64", None, False),
    ("raw", "bytes", "uint16", (2, 2), True),
    ("raws", "bytes", "float64", None, True),
]
GOOD = {"ints": [1, -2], "box": [0.5] * 4, "names": [b"a", b"b"], "raw": bytes(8)}


@pytest.fixture
def writer(tmp_path):
    return _core.ShardWriter(str(tmp_path / "a"))


def append(writer, *records, **place):
    return writer.append_frames(frames(records), schema=SCHEMA, **place)


@pytest.mark.parametrize(
    ("changes", "described"),
    [
        ({"ints": [1]}, ("1 value, the schema says 2", "int64", 1)),
        ({"ints": 0.5}, ("a float list, the schema says a int64 list", "float", 1)),
        ({"box": None}, ("no such feature, the schema says a float list", "nothing", 0)),
        ({"raw": bytes(7)}, ("an array of 7 bytes, the schema says 8", "bytes", 1)),
        ({"raws": bytes(9)}, ("an array of 9 bytes, the schema says a multiple of 8", "bytes", 1)),
    ],
)
def test_a_misfit_is_passed_over_with_its_feature_kind_and_count(writer, changes, described):
    record = {name: value for name, value in {**GOOD, **changes}.items() if value is not None}
    records, _, full, passed, misfits = append(writer, _core.encode_example(record), ordinal=7)
    (name,) = changes
    why, kind, count = described
    assert (records, full, passed) == (0, False, 1)
    assert misfits == [(7, f"feature '{name}': the record has {why}", name, kind, count, 0)]


def test_a_feature_that_the_schema_does_not_name_is_a_misfit(writer):
    record = _core.encode_example({**GOOD, "caption": [b"a", b"b"]})
    why = "feature 'caption' is not in the schema"
    assert append(writer, record)[3:] == (1, [(0, why, "caption", "bytes", 2, 0)])


@pytest.mark.parametrize(
    "payload", [b"hello world", wire(entry("ints", field(3, field(1, b"\x80"))))]
)
def test_what_is_no_example_is_passed_over_without_a_feature(writer, payload):
    *_, passed, [(ordinal, why, name, kind, count, _)] = append(writer, payload)
    assert (passed, ordinal, name, kind, count) == (1, 0, "", "nothing", 0)
    assert why.startswith("not a tf.train.Example: ")


def test_features_that_need_not_be_in_a_record_may_be_missing_or_have_no_kind(writer):
    records = [
        _core.encode_example(GOOD),
        _core.encode_example({**GOOD, "label": 1, "list": [1, 2, 3], "raws": bytes(16)}),
        _core.encode_example(GOOD) + wire(entry("label", b""), entry("list", b""), entry("z", b"")),
    ]
    assert append(writer, *records)[0] == 3


def test_a_feature_given_twice_is_a_misfit_if_its_values_differ(writer):
    good = _core.encode_example(GOOD)
    other = _core.encode_example({"ints": [1, 2]})
    *_, passed, [misfit] = append(writer, good + good, good + other)
    assert (passed, misfit[0], misfit[2]) == (1, 1, "ints")
    assert misfit[1] == "feature 'ints': the record has it twice, with different values"


def test_a_name_that_is_not_utf_8_is_shown_as_escapes(writer):
    feature = field(3, field(1, b"\x01"))
    odd = wire(field(1, field(1, b"\xff") + field(2, feature)))
    *_, [misfit] = append(writer, _core.encode_example(GOOD) + odd)
    assert misfit[1] == "feature '\\xff' is not in the schema"


def test_records_around_misfits_are_written_with_their_ordinals(tmp_path, writer):
    good = [_core.encode_example({**GOOD, "label": n}) for n in range(300)]
    mixed = [b"" if n % 2 else record for n, record in enumerate(good)]
    body = frames(mixed)
    first = append(writer, *mixed[:1])
    second = append(writer, *mixed[1:], ordinal=1)
    assert (first[0] + second[0], first[1] + second[1]) == (150, len(body))
    assert (second[3], [misfit[0] for misfit in second[4]]) == (150, [*range(1, 20, 2)])
    assert [misfit[-1] for misfit in second[4]] == [0] * 9 + [140]
    writer.finish("{}")
    assert (tmp_path / "a").read_bytes() == frames(good[::2])
    assert _core.Sidecar.read(str(tmp_path / "a.idx")).ordinals.tolist() == [*range(0, 300, 2)]


def test_a_full_shard_is_no_obstacle_to_misfits_before_the_next_record(tmp_path):
    writer = _core.ShardWriter(str(tmp_path / "a"), 12 << 10)
    good = _core.encode_example({**GOOD, "list": [7] * 3000})
    records, consumed, full, passed, _ = append(writer, good, bytes(9000), good)
    assert (records, full, passed) == (1, True, 1)
    assert consumed == len(frames([good, bytes(9000)]))


def test_a_corrupt_frame_behind_a_misfit_waits_for_the_next_call(writer):
    body = bytearray(frames([b"", _core.encode_example(GOOD)]))
    body[-1] ^= 1
    assert writer.append_frames(body, schema=SCHEMA)[:4] == (0, 16, False, 1)
    with pytest.raises(CorruptRecordError):
        writer.append_frames(body[16:], schema=SCHEMA)


# Against the reader

WORDS = [
    b"\x01",
    varint(-1),
    varint(2**40),
    b"\x80" * 9 + b"\x01",
    b"\x80" * 10,
    b"\x80",
    b"\xff" * 10,
]
PACKED = st.lists(st.sampled_from(WORDS) | st.just(b"\x05"), max_size=5).map(b"".join)
FLOATS = st.sampled_from([0, 4, 8, 12, 16, 7]).map(lambda size: field(1, bytes(size)))
FLOATS |= st.integers(0, 4).map(lambda n: (b"\x0d" + struct.pack("<f", 1)) * n)
TEXTS = st.lists(st.sampled_from([0, 7, 8, 16]).map(bytes), max_size=3)
LISTS = (
    PACKED.map(lambda packed: field(3, field(1, packed)))
    | st.integers(0, 3).map(lambda n: field(3, b"\x08\x05" * n))
    | FLOATS.map(lambda floats: field(2, floats))
    | TEXTS.map(lambda texts: field(1, b"".join(field(1, text) for text in texts)))
    | st.sampled_from([b"", b"\x78\x05", b"\x1a"])
)
FEATURES = st.lists(LISTS, min_size=1, max_size=2).map(b"".join)
NAMES = st.sampled_from([name for name, *_ in SCHEMA] + ["unnamed"])


@st.composite
def records(draw):
    """A record that fits the schema, a few of whose features were changed, removed or added."""
    entries = {name: _core.encode_example({name: value})[2:] for name, value in GOOD.items()}
    for name in draw(st.lists(NAMES, max_size=3)):
        if draw(st.integers(0, 5)) == 0:
            entries.pop(name, None)
        else:
            entries[name] = entry(name, draw(FEATURES))
    made = list(entries.values())
    if draw(st.integers(0, 9)) == 0:
        made.append(draw(st.sampled_from([entry("list", field(3, b"\x08\x05")), field(1, b"")])))
    return wire(*made) + draw(st.sampled_from([b"", b"", b"\x78\x05", b"\x12\x00", b"\x1a\x00"]))


@given(records())
def test_a_record_is_passed_over_exactly_if_a_reader_would_not_deliver_all_of_it(
    tmp_path_factory, record
):
    folder = tmp_path_factory.mktemp("check")
    checked = _core.ShardWriter(str(folder / "checked"))
    *_, passed, misfits = append(checked, record)
    checked.abort()
    plain = _core.ShardWriter(str(folder / "plain"))
    plain.append(record)
    plain.finish("{}")
    fallback = {"default": _core.encode_example({"label": 0})}
    features = [each[:5] if each[0] != "label" else (*each[:5], fallback) for each in SCHEMA]
    try:
        assert reader_of(folder / "plain", features, batch_size=1).next() is not None
        refusal = None
    except SchemaError as error:
        refusal = str(error)
    if refusal is not None:
        assert passed, refusal
    elif passed:
        assert b"unnamed" in record or "twice" in misfits[0][1]
    else:
        assert _core.decode_example(record).keys() <= {name for name, *_ in SCHEMA}
