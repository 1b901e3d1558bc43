"""Weights of datasets: which can be, and what shares they come to."""

from __future__ import annotations

import pytest

from cachecd_client.errors import CallerError
from cachecd_client.runs.mixture import Weights


@pytest.mark.parametrize(
    ("weights", "why"),
    [
        ({}, "expected a name, or a dict of dataset -> weight"),
        (["web"], "expected a name, or a dict of dataset -> weight"),
        ({"web": -1}, "weight -1 of dataset 'web', expected a number of 0 or more"),
        ({"web": float("nan")}, "weight nan of dataset 'web'"),
        ({"web": float("inf")}, "weight inf of dataset 'web'"),
        ({"web": "much"}, "weight 'much' of dataset 'web'"),
        ({"web": 0, "code": 0.0}, "the weights of web, code are all 0"),
        ({7: 1}, "7 is not the name of a dataset"),
    ],
)
def test_weights_that_cannot_be_are_refused(weights, why):
    with pytest.raises(CallerError, match=why):
        Weights(weights)
    with pytest.raises(CallerError, match=why):
        Weights(lambda progress: weights).at(0.5)


@pytest.mark.parametrize("scale", [1e-320, 1e-9, 1, 1e307])
def test_weights_count_against_each_other_whatever_their_size(scale):
    found = Weights({"web": 6 * scale, "code": 2 * scale, "talk": 1e-323}).at(0.0)
    assert sum(found.values()) == pytest.approx(1)
    assert found["web"] == pytest.approx(0.75, rel=0.01)
    assert list(found) == ["web", "code", "talk"]
