"""docs/semantics.md is a contract: its table names tests for each promise, and these tests exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROSE, _, TABLE = (ROOT / "docs" / "semantics.md").read_text().partition("\n## The tests\n")
PROMISES = re.findall(r"^- \*\*(\d+\.\d+)\*\* ", PROSE, re.M)
ROWS = re.findall(r"^\| (\d+\.\d+) \| (.*) \|$", TABLE, re.M)
DEFINED = {
    name
    for path in (ROOT / "tests").rglob("*.py")
    for name in re.findall(
        r"^ *(?:async )?(?:def|class) (\w+)|^(Test\w+) =", path.read_text(), re.M
    )
    for name in name
    if name
}


def test_every_statement_is_a_numbered_promise():
    assert len(re.findall(r"^- ", PROSE, re.M)) == len(PROMISES)
    assert len(set(PROMISES)) == len(PROMISES)


def test_every_promise_has_tests():
    assert [number for number, _ in ROWS] == PROMISES
    assert [number for number, tests in ROWS if not re.search(r"`(test_|Test)\w+`", tests)] == []


def test_every_test_that_is_named_exists():
    named = set(re.findall(r"`((?:test_|Test)\w+)`", TABLE))
    assert named - DEFINED == set()
