"""What the README and the tutorial show is what this version takes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from cachecd.cli import COMMANDS
from cachecd.config import load
from tests.docs.shown import PAGES, ROOT, blocks, configurations


@pytest.mark.parametrize("page", [page for page in PAGES if configurations(page)])
def test_every_configuration_shown_is_one(page, tmp_path):
    for number, text in enumerate(configurations(page)):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text)
        environ = {"PWD": str(tmp_path), "NODE_RANK": "3", "NNODES": "4"}
        assert load(path, environ).datasets


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "yaml")])
def test_every_part_of_a_configuration_shown_is_yaml(page):
    for text in blocks(page, "yaml"):
        assert isinstance(YAML(typ="safe", pure=True).load(text), dict)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")])
def test_every_program_shown_is_one(page):
    for text in blocks(page, "python"):
        compile(text, page, "exec")


if "CACHECD_LONG" in os.environ:  # it takes 6 s of CPU time

    def test_a_mixture_learns_from_more_and_more_noisy_digits(tmp_path):
        done = subprocess.run(
            [sys.executable, "docs/examples/mixture.py"],
            cwd=ROOT, env={**os.environ, "CACHE": str(tmp_path)},
            capture_output=True, text=True, timeout=100, check=True,
        )  # fmt: skip
        found = re.findall(r"epoch \d: (\d+) clean, .*; (\d+) noisy, loss", done.stdout)
        shares = [int(noisy) / (int(clean) + int(noisy)) for clean, noisy in found]
        assert shares == pytest.approx([0.1, 0.3, 0.5, 0.7], abs=0.06)
        (accuracy,) = re.findall(r"accuracy ([\d.]+)% of 360", done.stdout)
        assert float(accuracy) > 75


def test_every_command_shown_exists():
    named = {
        (page, command)
        for page in PAGES
        for command in [
            *re.findall(r"(?:`|&& )cachecd ([a-z]+)\b", (ROOT / page).read_text()),
            *re.findall(r"^cachecd ([a-z]+)", "".join(blocks(page, "sh")), re.M),
        ]
    }
    assert len(named) > 20
    assert {(page, command) for page, command in named if command not in COMMANDS} == set()


def test_every_link_leads_to_a_file_and_to_a_heading_of_it():
    pages = [ROOT / page for page in PAGES]
    links = [
        (page, path, heading)
        for page in pages
        for path, heading in re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", page.read_text())
    ]
    assert len(links) > 50
    wrong = []
    for page, path, heading in links:
        to = page.parent / path if path else page
        if not to.exists() or (heading and heading not in headings(to)):
            wrong.append(f"{page.name}: {path}#{heading}")
    assert wrong == []


def headings(page: Path) -> set[str]:
    """Of a page in Markdown, as links name them."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in found}


def test_every_example_is_run_by_a_test():
    """Here or by tests.estimator; most in the long form. The benchmark of the situations has its own."""
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    names = {path.stem for path in (ROOT / "docs" / "examples").glob("[!s]*.py")}
    assert {name for name in names if name not in tests} == set()


def test_a_newcomer_needs_two_commands():
    assert blocks("README.md", "sh") == [
        "pip install ./client '.[demo]' && cachecd demo\n",
        "pip install ./client '.[test]' && pytest\n",
    ]
