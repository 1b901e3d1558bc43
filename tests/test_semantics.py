"""docs/semantics.md is a contract: each statement names tests, and these tests exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "semantics.md").read_text()
DEFINED = {
    name
    for path in (ROOT / "tests").rglob("*.py")
    for name in re.findall(
        r"^ *(?:async )?(?:def|class) (\w+)|^(Test\w+) =", path.read_text(), re.M
    )
    for name in name
    if name
}


def statements() -> list[str]:
    return [s.strip() for s in re.split(r"^- ", TEXT, flags=re.MULTILINE)[1:]]


def test_every_statement_names_a_test():
    assert [s for s in statements() if not re.search(r"`(test_|Test)\w+`", s)] == []


def test_every_test_that_is_named_exists():
    named = set(re.findall(r"`((?:test_|Test)\w+)`", TEXT))
    assert named - DEFINED == set()
