"""A label keeps its number, whatever is found later."""

from __future__ import annotations

import pytest

from cachecd.errors import DamagedError
from cachecd.listing.classes import ClassNames


def test_found_names_are_appended_in_order():
    names = ClassNames().extended(["dog", "cat", "dog"])
    assert names.names == ("cat", "dog")
    assert names.extended(["ant", "dog"]).names == ("cat", "dog", "ant")
    assert names.extended(["dog"]) is names


def test_stored_names_are_read_back():
    names = ClassNames(("\udcff", "Übel", "007"))
    assert ClassNames.decode(names.encode()) == names
    assert names.encode().isascii()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"version": 2, "classes": []}',
        b'{"version": 1, "classes": ["a", "a"]}',
        b"\x00" * 40,
    ],
)
def test_damaged_numbers_are_never_guessed(text):
    with pytest.raises(DamagedError, match="class numbers are damaged"):
        ClassNames.decode(text)
