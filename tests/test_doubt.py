"""When a start fetches nothing because it does not know whether the store is the one before."""

from __future__ import annotations

from cachecd.doubt import Doubt


def test_a_first_run_fetches_while_it_lists():
    doubt = Doubt()
    doubt.begin(1, complete=False)
    assert (doubt.reason, doubt.unsure) == ("", set())
    assert doubt.ended(0, complete=True), "to be saved"
    assert not doubt.ended(0, complete=True)


def test_a_later_run_fetches_while_it_compares_until_the_listing_shows_another_store():
    doubt = Doubt(known=True)
    doubt.begin(1, complete=True)
    assert (doubt.reason, doubt.unsure) == ("", {0})
    doubt.raised(0, "200 of 300")
    doubt.unlisted(0)
    assert doubt.reason == "200 of 300", "that the store is not to be listed any more shows nothing"
    doubt.ended(0, complete=True)
    assert (doubt.reason, doubt.unsure) == ("", set())


def test_a_new_generation_waits_for_its_first_listing_but_not_for_a_store_that_cannot_be_listed():
    doubt = Doubt()
    doubt.begin(2, complete=True)
    assert doubt.reason
    doubt.ended(0, complete=True)
    assert doubt.reason, "the other source has not been listed"
    doubt.unlisted(1)
    assert doubt.reason == ""
