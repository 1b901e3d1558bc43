"""Numbers of one dtype as another, against NumPy and torch; packed integers, against a plain decoder."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecd_client import _core
from tests.core.shards import entry, field, varint, wire
from tests.frameworks import torch

INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
FLOATS = ["float16", "float32", "float64"]
NUMPYS = ["bool", *INTEGERS, *FLOATS]


def samples(dtype):
    """Numbers that matter to the dtype, in an odd number so that no vector is left whole."""
    if dtype == "bool":
        return np.array([0, 1, 1, 0, 1, 0, 0] * 9, np.bool_)
    random = np.random.default_rng(7)
    if dtype in INTEGERS:
        limits = np.iinfo(dtype)
        edges = [limits.min, limits.max, 0, 1, limits.max - 1, limits.max // 2 + 1]
        spread = random.integers(limits.min, limits.max, 301, dtype, endpoint=True)
        return np.concatenate([np.array(edges, dtype), spread, spread >> 5])
    edges = [np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, -0.5, 1.5, 254.6, 255.5, -1.0]
    edges += [65504, 65519.99, 65520, 1e-7, 6e-8, 2.9e-8]
    edges += [127.5, -128.9, 2147483647.5, 4294967295.5, 2.0**24 + 1, -(2.0**31), 3.4e38, 1e-45]
    with np.errstate(over="ignore"):
        return np.concatenate([edges, random.normal(0, 100, 301)]).astype(dtype)


def carried(array):
    """Bits, and NaN as one NaN, so that equal means equal."""
    if array.dtype.kind != "f":
        return array
    return np.where(np.isnan(array), np.nan, array).astype(array.dtype).view(f"u{array.itemsize}")


@pytest.mark.parametrize("source", NUMPYS)
@pytest.mark.parametrize("target", NUMPYS)
def test_numbers_are_converted_as_numpy_does(source, target):
    values = samples(source)
    if source in FLOATS and target in INTEGERS:
        # What NumPy leaves to the processor has a test of its own.
        limits = np.iinfo(target)
        exact = values.astype(np.float64)
        values = values[(exact >= limits.min / 2) & (exact <= limits.max / 2)]
    with np.errstate(over="ignore"):
        expected = values.astype(target)
    for portable in (False, True):
        found = _core.convert(values, source, target, portable)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(carried(found), carried(expected))


@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("target", INTEGERS)
def test_floats_beyond_an_integers_limits_become_the_limits_and_nan_zero(source, target, portable):
    with np.errstate(over="ignore"):
        values = np.array(
            [np.inf, -np.inf, np.nan, 1e30, -1e30, -1.0, 2.0**63, 2.0**64, 2.0**31, 255.9] * 3,
            source,
        )
    limits = np.iinfo(target)

    def truncated(x):
        if np.isnan(x):
            return 0
        if np.isinf(x):
            return limits.max if x > 0 else limits.min
        return min(max(int(x), limits.min), limits.max)

    expected = [truncated(float(x)) for x in values]
    assert _core.convert(values, source, target, portable).tolist() == expected


@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize("source", ["float32", "float64"])
def test_halves_are_rounded_once_ties_to_even(source, portable):
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    between = (halves[1:] + halves[:-1]) / 2
    nearly = np.nextafter(between, [[0], [np.inf]]).ravel()
    values = np.concatenate([halves, between, nearly, -between])
    if source == "float32":
        values = values.astype(np.float32)
    expected = values.astype(np.float16)
    np.testing.assert_array_equal(
        carried(_core.convert(values, source, "float16", portable)), carried(expected)
    )


def in_thread(work):
    """What `work` returns, run in a thread of its own, whose settings end with it."""
    found = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def flushing(work):
    """`work` with the processor told to take denormal numbers for 0."""

    def flushed():
        assert torch.set_flush_denormal(True)
        return work()

    return lambda: in_thread(flushed)


@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize(
    ("source", "target"), [("float16", "float32"), ("float32", "float16"), ("float64", "float32")]
)
def test_denormal_numbers_count_whatever_the_trainer_told_its_processor(source, target, portable):
    tiny = np.full(9, {"float64": 1e-40}.get(source, 6e-8), source)
    expected = tiny.astype(target).tobytes()
    convert = lambda: _core.convert(tiny, source, target, portable).tobytes()  # noqa: E731
    assert flushing(convert)() == expected


def bfloats(bits):
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)


@pytest.mark.parametrize("portable", [False, True])
def test_bfloat16_is_rounded_as_torch_does(portable):
    bits = np.random.default_rng(4).integers(0, 1 << 32, 1 << 17, np.uint32)
    ties = np.arange(0x8000, 0x8000 + (1 << 25), 1 << 16, dtype=np.uint32)  # half-way between two
    values = np.concatenate([bits, ties, ties + 1, ties - 1]).view(np.float32)
    found = bfloats(_core.convert(values, "float32", "bfloat16", portable))
    expected = torch.from_numpy(values).to(torch.bfloat16)
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found[~found.isnan()], expected[~expected.isnan()])


def test_an_unknown_dtype_is_a_value_error():
    with pytest.raises(ValueError, match="unknown dtype 'complex64'"):
        _core.convert(b"", "float32", "complex64")


# Packed integers


# Of every length a varint can have, all as likely.
ANY_SIZE = st.integers(0, 63).flatmap(lambda bits: st.integers(-(2**bits), 2**bits - 1))


@given(st.lists(ANY_SIZE, max_size=300), st.booleans())
def test_the_fast_loop_takes_numbers_as_they_are_and_stops_between_two(numbers, portable):
    data = b"".join(map(varint, numbers))
    found, used = _core._decode_some_varints(data, len(numbers), portable)
    assert found.tolist() == numbers[: len(found)]
    assert used == sum(len(varint(n)) for n in found.tolist())
    # It stops only near an end.
    assert len(numbers) - len(found) < 8 or len(data) - used < 10


@given(st.binary(max_size=200), st.booleans())
def test_both_loops_take_the_same_of_any_bytes(data, portable):
    found, used = _core._decode_some_varints(data, 300, False)
    other, other_used = _core._decode_some_varints(data, 300, True)
    assert (found.tolist(), used) == (other.tolist(), other_used)
    assert used <= len(data)


@pytest.mark.parametrize("before", [0, 1, 7, 8, 9, 40])
def test_a_number_of_more_than_ten_bytes_is_refused_wherever_it_stands(before):
    packed = bytes([5]) * before + b"\xff" * 11 + b"\x01" * 20
    with pytest.raises(ValueError, match="longer than ten bytes"):
        _core.decode_example(wire(entry("x", field(3, field(1, packed)))))
