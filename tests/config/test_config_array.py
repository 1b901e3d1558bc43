"""What `source.array` takes, and what is said of mistakes in it."""

from __future__ import annotations

import pytest

NPY = "format: npy\n      array: "


@pytest.mark.parametrize(
    ("array", "complaint"),
    [
        ("{}", "array.window: missing"),
        ("{window: 0}", "array.window: found 0"),
        ("{window: 4, shape: [2]}", "array.shape: `dtype` is missing: set it"),
        ("{window: 4, dtype: complex64}", "array.dtype: found 'complex64', expected a dtype such"),
        ("{window: 4, dtype: '|O'}", "array.dtype: found '|O', expected a dtype such"),
        ("{window: 4, arrays: {a: '*.npy'}, match: x}", "array.match: found `match` next to"),
        ("{window: 4, arrays: {key: '*.npy'}}", "arrays: a feature cannot have the name 'key'"),
        ("{window: 4, arrays: {a: 'b.npy'}}", "array.arrays.a: found 'b.npy', expected a pattern"),
        ("{window: 4, arrays: {a: '*/*.npy'}}", "array.arrays.a: found '*/*.npy', expected"),
        ("{window: 4, windows: 5}", "array.windows: unknown key"),
        ("{window: 4, path: a}", "array.path: removed; use format: python with reader: cachecd"),
        (
            "{window: 4, arrays: {a: {match: '*.x', path: a}}}",
            "arrays.a.path: removed; use format: ",
        ),
        ("{window: 4, random: 3}", "array.random: removed; use stride, or your own reader"),
    ],
)
def test_a_mistake_is_named_with_its_place(complaints, good, array, complaint):
    [line] = complaints(good.replace("format: files", NPY + array))
    assert complaint in line
    assert line.split(":")[0].isdigit()


def test_windows_are_for_npy_alone(complaints, good):
    [line] = complaints(good.replace("format: files", "format: npy"))
    assert "datasets.train.source: `array` is missing: set it to {window: ROWS}" in line
    [line] = complaints(good.replace("format: files", "format: files\n      array: {window: 3}"))
    assert "array: only format npy has `array`, but the format is files" in line
