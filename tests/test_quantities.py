"""Sizes, durations and rates: what is read, what is refused, and that format undoes parse."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecd.quantities import (
    MAX_SIZE,
    Percent,
    approximate_size,
    format_duration,
    format_rate,
    format_size,
    parse_duration,
    parse_rate,
    parse_size,
    parse_size_or_percent,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64MiB", 64 << 20),
        ("500GiB", 500 << 30),
        ("1GB", 10**9),
        ("1 GB", 10**9),
        ("1.5kB", 1500),
        ("1KB", 1000),
        ("0.3B", 0),
        ("4096", 4096),
        (4096, 4096),
        (1e9, 10**9),
        ("7.999999999999999999EiB", MAX_SIZE - 1),
    ],
)
def test_a_size_is_read_in_any_unit(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    [
        *[
            "",
            "GiB",
            "-1",
            "-1GiB",
            "1Gib",
            "1gib",
            "1GiB/s",
            "1e3",
            "1_000",
            "1 0",
            "1.",
            ".5GB",
            "١GB",
        ],
        *[-1, True, None, [], math.inf, math.nan, "8EiB", 2**63, "9" * 5000],
    ],
)
def test_what_is_no_size_is_refused_with_what_was_found_and_expected(text):
    with pytest.raises(ValueError, match=r"^found .*, expected a size"):
        parse_size(text)


@given(st.integers(0, MAX_SIZE))
def test_a_formatted_size_reads_back_as_the_same_size(size):
    assert parse_size(format_size(size)) == size


@given(st.floats(0, allow_nan=False, allow_infinity=False))
def test_a_formatted_duration_reads_back_as_the_same_duration(seconds):
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.floats(0, 1e18, allow_nan=False))
def test_a_formatted_rate_reads_back_as_the_same_rate(rate):
    assert parse_rate(format_rate(rate)) == rate


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("10m", 600), ("1.5h", 5400), ("250ms", 0.25), (2.5, 2.5)]
)
def test_a_duration_is_read_in_any_unit(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["10min", "1h30m", "s", -1, "10MB", "3m/s", None])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match="expected a duration"):
        parse_duration(text)


def test_a_rate_is_bytes_a_second():
    assert parse_rate("600MB/s") == 600e6
    assert parse_rate(1000) == 1000


@pytest.mark.parametrize("text", ["600MB", "600Mb/s", "600/s", "1Gbit/s", "600MB/min"])
def test_a_rate_without_its_second_or_in_bits_is_refused(text):
    with pytest.raises(ValueError, match="expected a rate"):
        parse_rate(text)


def test_a_percentage_is_taken_of_a_total_rounded_down():
    assert parse_size_or_percent("80%") == Percent(80.0)
    assert Percent(80.0).of(999) == 799
    assert Percent(33.3).of(10**15) == 333 * 10**12
    assert parse_size_or_percent("1GB") == 10**9


@given(st.integers(1, 10_000))
def test_a_percentage_reads_back_as_the_same_percentage(hundredths):
    share = Percent(hundredths / 100)
    assert parse_size_or_percent(str(share)) == share


@pytest.mark.parametrize("text", ["0%", "100.1%", "-5%", "%", "5MiB%", "80 percent"])
def test_a_share_outside_of_0_to_100_percent_is_refused(text):
    with pytest.raises(ValueError, match="expected"):
        parse_size_or_percent(text)


def test_an_approximate_size_has_one_decimal_of_the_largest_unit_below_it():
    assert approximate_size(0) == "0 B"
    assert approximate_size(1023) == "1023 B"
    assert approximate_size(1536) == "1.5 KiB"
    assert approximate_size(465.66 * 2**30) == "465.7 GiB"
    assert approximate_size(MAX_SIZE) == "8.0 EiB"
