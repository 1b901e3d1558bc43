"""What the log says of units that are set aside."""

from __future__ import annotations

import pytest
import structlog

from cachecd.aside import Asides
from cachecd.events import SavePlan
from cachecd.model import SetAside

SIGNED = "https://host/a.jpg?X-Amz-Signature=0123abcd"


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (SIGNED, "https://host/a.jpg"),
        (f"1/{SIGNED}", "1/https://host/a.jpg"),
        ("what?/a.jpg", "what?/a.jpg"),
    ],
)
def test_of_a_key_that_is_a_signed_url_the_log_has_no_signature(key: str, said: str):
    asides = Asides()
    asides.found("train", [])
    with structlog.testing.capture_logs() as logged:
        asides.changed(SavePlan("train", set_aside=(SetAside(0, key, "access denied"),)))
    assert [entry["key"] for entry in logged] == [said]
    assert asides["train"][0].key == key
