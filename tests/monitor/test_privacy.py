"""What the status document shows of keys, whatever characters the keys have."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecd.daemon.status import ListingStatus, SkippedReason, SkippedStatus
from cachecd.monitor.privacy import without_keys
from tests.monitor.documents import dataset, status

KEYS = st.text(st.sampled_from(["'", '"', "(", ")", "[", "]", "\\", " ", ",", ":", "t", "ä"]))


def shown_reason(text: str) -> str:
    masked: str = without_keys(status(complaints={"monitoring": text}))["complaints"]["monitoring"]
    return masked


@given(key=KEYS, other=KEYS)
def test_key_with_any_characters_is_masked_in_every_quotation(key, other):
    for quoted in (repr(key), repr(key.encode()), f"'{key}'", f'"{key}"'):
        assert shown_reason(f"can't open {quoted}: no such file") == "can't open …: no such file"
        both = f"can't copy {quoted} to '{other}': no space"
        assert shown_reason(both) == "can't copy …: no space"


@given(key=KEYS, count=st.integers(4, 9))
def test_example_with_any_characters_is_not_shown(key, count):
    text = f"{count} hidden names ({key}, {key}, ...), 1 empty object ({key})"
    values = dataset(listing=ListingStatus(9, 1.0, "", text, ""))
    shown = without_keys(status(datasets={"train": values}))["datasets"]["train"]
    assert shown["listing"]["left_out"] == f"{count} hidden names (…)"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("can't open 'alice.jpg'", "can't open …"),
        ("cannot open 'alice's.j", "cannot open …"),
        ("cannot read s3://bucket/alice.jpg: 403", "cannot read … 403"),
        ("the job's set and the dataset's share", "the job's set and the dataset's share"),
        ("b'alice' is no key", "… is no key"),
    ],
)
def test_reason_keeps_its_words_and_loses_its_keys(text, shown):
    assert shown_reason(text) == shown


def test_no_text_of_a_dataset_shows_a_key():
    why = "can't read 'alice.jpg'"
    texts: dict[str, Any] = dict.fromkeys(
        ("stopped", "waits_for", "rotation_waits", "held_back"), why
    )
    skipped = SkippedStatus(1, 0, {why: SkippedReason(1, 0, ["alice.jpg"])})
    listing = ListingStatus(1, 1.0, why, "1 hidden name (alice.jpg)", why)
    values = dataset(**texts, skipped=skipped, listing=listing)
    assert "alice" not in str(without_keys(status(datasets={"train": values})))
