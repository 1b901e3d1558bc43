"""A label keeps its number, whatever is found later."""

from __future__ import annotations

import json

import pytest

from cachecd.listing.classes import ClassNames


def test_found_names_are_appended_in_order():
    names = ClassNames().extended(["dog", "cat", "dog"])
    assert names.names == ("cat", "dog")
    assert names.extended(["ant", "dog"]).names == ("cat", "dog", "ant")
    assert names.extended(["dog"]) is names


def test_stored_names_are_read_back():
    names = ClassNames(("\udcff", "Übel", "007"))
    assert ClassNames.of(json.loads(json.dumps(names.content()))) == names


@pytest.mark.parametrize("content", [[], {}, {"classes": ["a", "a"]}, {"classes": [1]}])
def test_damaged_numbers_are_never_guessed(content):
    with pytest.raises(ValueError, match="expected each name once"):
        ClassNames.of(content)
