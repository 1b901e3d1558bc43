"""The programs and configurations docs/examples/situation_*: they compile, and load."""

from __future__ import annotations

import pytest

from cachecd.config import load
from tests.docs.shown import ROOT

EXAMPLES = ROOT / "docs" / "examples"


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("situation_*.py")))
def test_every_example_is_a_program(name):
    compile((EXAMPLES / name).read_text(), name, "exec")


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("situation_*.yaml")))
def test_every_configuration_of_an_example_is_one(name):
    assert load(EXAMPLES / name, {}).datasets["train"]
