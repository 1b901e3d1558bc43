"""Headers of .npy objects that do not hold."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cachecd.sampler.sources import windows
from cachecd.sampler.sources.windows import TARGET
from tests.sampler.arrays import Place


@pytest.fixture
def place(tmp_path: Path) -> Any:
    return lambda **array: Place(tmp_path, **array)


def header(text: str, version: int = 1, length: int | None = None) -> bytes:
    size = struct.pack("<H" if version == 1 else "<I", len(text) if length is None else length)
    return b"\x93NUMPY" + bytes([version, 0]) + size + text.encode()


def described(shape: str = "(8,)", descr: str = "'<f4'", fortran: str = "False") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}"
    return header(text) + bytes(64)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "the object is empty"),
        (b"no array", "not a .npy file: it begins with b'no array'"),
        (header("", 9), "a .npy file of version 9, expected 1, 2 or 3"),
        (header("", 2, 2**32 - 1), "its header has 4294967295 bytes, expected at most 10000"),
        (header("", 2, 9000), "truncated: "),
        (header("[" * 9000 + "]" * 900), "its header cannot be read: "),
        (described("(3,)"), "the array has 3 rows, fewer than array.window (4)"),
        (described("(17,)"), "its header promises 136 (shape (17,), float32)"),
        (described("(8, 2)", fortran="True"), "Fortran order"),
        (described("()"), "no axis"),
        (described("(8, -1)"), "expected whole numbers"),
        (described("(8, 0)"), "is empty"),
        (described("(4294967296, 4294967296, 4294967296)"), "73786976294838206464 bytes"),
        (described(descr="'|O'"), "it holds Python objects"),
        (described(descr="'<f16'"), "expected one of bfloat16, bool"),
        (described(descr="[('x', '<f4')]"), "expected one of"),
        (described(descr="'<i1000000000000'"), "not a valid dtype descriptor"),
        (described(descr="'<V2'"), "two bytes without a type: if they are bfloat16, set dtype"),
    ],
)  # fmt: skip
def test_a_header_that_does_not_hold_is_refused_with_the_reason_and_the_rest_goes_on(
    place, body, reason
):
    found = place(window=4)
    found.put(a_npy=body, b_npy=np.arange(4))
    assert [r["key"] for r in found.records()] == [b"b.npy"]
    assert reason in found.set_aside["a.npy"]


def test_one_window_that_no_record_can_hold_is_refused(place):
    found = place(window=2**30)
    path = found.folder / "a.npy"
    with path.open("wb") as file:  # sparse: it takes no room
        file.write(header(f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({2**31},)}}"))
        file.truncate(2**34 + 200)
    assert found.records() == []
    assert "has 8589934592 bytes, expected at most 1073741824" in found.set_aside["a.npy"]


def test_an_array_that_would_make_too_many_units_is_refused(place, monkeypatch):
    monkeypatch.setattr(windows, "_MOST_UNITS", 3)
    found = place(window=100)
    found.put(a_npy=np.zeros(TARGET // 4))
    assert len(found.units()) == 2
    found.put(a_npy=np.zeros(TARGET))
    [unit] = found.units()
    assert unit.begin == 0
