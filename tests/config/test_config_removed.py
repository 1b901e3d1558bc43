"""Keys of an earlier edition: one line each, with what to use in their place."""

from __future__ import annotations

from cachecd.config.keys import every_key
from cachecd.config.removed import removed


def test_every_key_of_this_edition_is_not_removed():
    assert [key.path for key in every_key() if removed(key.path.split("."))] == []
