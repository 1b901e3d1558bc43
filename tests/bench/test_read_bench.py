"""The reading benchmark holds every reader to the same records."""

from __future__ import annotations

import numpy as np
import pytest

from tests.bench import data, delivery
from tests.bench.contenders import CONTENDERS
from tests.bench.data import CASES, RecordSet
from tests.bench.delivery import DeliveryError, verify
from tests.bench.runs import FIGURES
from tests.bench.test_short_forms import run

# Every checkout that runs tests has these packages; rivals run where theirs are installed.
INSTALLED = {"torch", "tensorflow"}


@pytest.mark.long
def test_every_reader_that_is_installed_delivers_every_record(tmp_path):
    quick = ("--quick", "--megabytes", "4", "--data", str(tmp_path), "--only", "4kB/*")
    document, printed = run("read", *quick)
    assert document["failed"] == {}
    measured, verified = document["measured"]["4kB"], document["verified"]["4kB"]
    assert {n for n, r in CONTENDERS.items() if set(r.imports) <= INSTALLED} <= measured.keys()
    for name, figures in measured.items():
        baseline = CONTENDERS[name].family == "baseline"
        assert baseline or verified[name]["whole"]
        assert set(figures) == set(FIGURES[:2] if baseline else FIGURES), name
        assert figures["mb_s"][0] > 0
        assert f"\n| {name} |" in printed


# Delivery


@pytest.fixture
def records(tmp_path) -> RecordSet:
    return RecordSet(tmp_path, CASES["4kB"], 0.1)


def batches(records: RecordSet) -> list[dict]:
    """A right delivery: three records a batch, the last first."""
    batches = [range(n, n + 3) for n in range(records.num_records - 3, -1, -3)]
    return [
        {
            "image": np.stack([data.image(records.case, number) for number in batch]),
            "label": np.array(batch),
        }
        for batch in batches
    ]


def check(records: RecordSet, delivered: list[dict], tails: int = 0) -> delivery.Verified:
    return verify(lambda: iter(delivered), records, seconds=60, tails=tails)


def test_a_whole_pass_of_the_right_records_is_accepted(records):
    assert (records.num_records, records.batch_size) == (24, 3)
    assert check(records, batches(records)) == delivery.Verified(24, whole=True)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        ("delivered[3]['image'][0, 99] ^= 1", "not the one that was written"),
        ("delivered[3]['label'][1] += 1", "does not belong to its label"),
        ("delivered[3] = delivered[4]", "delivered twice"),
        ("del delivered[3]", "3 of 24 records are missing"),
        ("delivered[3] = {n: column[:1] for n, column in delivered[3].items()}", "expected"),
        ("delivered.reverse()", "in the order in which they are stored"),
    ],
)
def test_another_delivery_is_found_out(records, spoil, why):
    delivered = batches(records)
    exec(spoil, {"delivered": delivered})
    with pytest.raises(DeliveryError, match=why):
        check(records, delivered)
