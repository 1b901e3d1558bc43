"""When a start fetches nothing because it does not know whether the store is the one before."""

from __future__ import annotations

from cachecd.doubt import Doubt


def test_a_first_run_fetches_while_it_lists():
    doubt = Doubt()
    doubt.begin(complete=False)
    assert (doubt.reason, doubt.unsure) == ("", False)
    assert doubt.ended(complete=True), "to be saved"
    assert not doubt.ended(complete=True)


def test_a_later_run_fetches_while_it_compares_until_the_listing_shows_another_store():
    doubt = Doubt(known=True)
    doubt.begin(complete=True)
    assert (doubt.reason, doubt.unsure) == ("", True)
    doubt.raised("200 of 300")
    doubt.unlisted()
    assert doubt.reason == "200 of 300", "that the store is not to be listed any more shows nothing"
    doubt.ended(complete=True)
    assert (doubt.reason, doubt.unsure) == ("", False)


def test_a_new_generation_waits_for_its_first_listing_but_not_for_a_store_that_cannot_be_listed():
    doubt = Doubt()
    for listed in (True, False):
        doubt.begin(complete=True)
        assert doubt.reason
        if listed:
            doubt.ended(complete=False)
        else:
            doubt.unlisted()
        assert doubt.reason == ""
