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


def test_whole_numbers_are_ordered_by_value():
    names = {"10", "9", "-1", "007", "7", "07", "0", "-0", "-10"}
    ordered = ("-10", "-1", "-0", "0", "007", "07", "7", "9", "10")
    assert ClassNames().extended(names).names == ordered
    assert ClassNames(("10", "a")).extended(["11", "9"]).names == ("10", "a", "9", "11")


@pytest.mark.parametrize("other", ["a", "1.5", "+1", " 1", "1_0", "\u0661", "-", "9" * 5000, ""])
def test_one_other_name_makes_the_order_that_of_the_text(other):
    names = ["10", "9", other]
    assert ClassNames().extended(names).names == tuple(sorted(names))


def test_stored_names_are_read_back():
    names = ClassNames(("\udcff", "Übel", "007"))
    assert ClassNames.from_content(json.loads(json.dumps(names.content()))) == names


@pytest.mark.parametrize("content", [[], {}, {"classes": ["a", "a"]}, {"classes": [1]}])
def test_damaged_numbers_are_never_guessed(content):
    with pytest.raises(ValueError, match="expected each name once"):
        ClassNames.from_content(content)
