"""sampler.path: directories that are there, beside the configuration file unless they are absolute."""

from __future__ import annotations

import pytest

from cachecd.config import load


@pytest.fixture
def project(tmp_path):
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


def test_a_relative_directory_lies_beside_the_file_wherever_it_is_loaded_from(
    loaded, good, project, monkeypatch
):
    monkeypatch.chdir("/")
    text = f"{good}sampler: {{path: [project, /usr, .]}}\n"
    found = loaded(text).sampler.path
    assert [str(path) for path in found] == [str(project), "/usr", str(project.parent)]
    monkeypatch.chdir(project.parent)
    assert load("cachecd.yaml", {}).sampler.path == found
    assert loaded(good, CACHECD_SAMPLER__PATH="[project]").sampler.path == (project,)


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("[project, sr]",
         "10:27: sampler.path.1: found 'sr', expected a directory: {}/sr: No such"),
        ("[/no/such]",
         "10:18: sampler.path.0: found '/no/such', expected a directory: /no/such: No"),
        ("[cachecd.yaml]",
         "10:18: sampler.path.0: found 'cachecd.yaml', expected a directory: {}/"),
        ("project", "10:17: sampler.path: found 'project', expected a list"),
        ("[7]", "10:18: sampler.path.0: found 7, expected text"),
    ],
)  # fmt: skip
def test_what_is_no_directory_is_told_with_line_and_column(
    complaints, good, project, path, complaint
):
    [line] = complaints(f"{good}sampler: {{path: {path}}}\n")
    assert line.startswith(complaint.format(project.parent))
