"""docs/api.md has the public names of this version."""

from __future__ import annotations

import cachecd_client
from tests.docs import api


def test_the_table_is_the_one_of_this_version():
    assert api.PAGE.read_text() == api.page(), "python -m tests.docs.api writes it"


def test_every_public_name_is_in_the_table():
    table = api.names()
    assert [name for name in cachecd_client.__all__ if f"`{name}" not in table] == []
