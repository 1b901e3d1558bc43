"""The first look at a source: what is refused before anything is made on disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cachecd.cli.check import command as check
from cachecd.config import Config, load
from cachecd.daemon.workers import lister_of
from cachecd.errors import ConfigError
from cachecd.units.first_look import check_sources

PATTERN = r"^([^/]+)/"


def look(config: Config) -> None:
    check_sources(config, lister_of(config, is_owner=False))


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    """The path of a configuration whose source has one object of each of seven classes, 0 to 6."""
    for number in range(7):
        (tmp_path / "data" / str(number)).mkdir(parents=True)
        (tmp_path / "data" / str(number) / "one").write_bytes(b"x")

    def write(**label: object) -> Path:
        url = f"file://{tmp_path}/data/"
        source = {"url": url, "format": "files", "label": {"pattern": PATTERN, **label}}
        cache = {"dir": str(tmp_path / "cache"), "limit": "64MiB", "shard_size": "64KiB"}
        document = {"version": 1, "cache": cache, "datasets": {"train": {"source": source}}}
        (tmp_path / "c.yaml").write_text(json.dumps(document))
        return tmp_path / "c.yaml"

    return write


def test_check_shows_objects_of_other_classes_as_skipped(written, capsys):
    check(written(classes=[3]), sources=True)
    said = capsys.readouterr().out
    assert "labels by ^([^/]+)/, 1 classes\n" in said
    assert "skipped: 0/one: class '0' is not in label.classes: add it" in said


@pytest.mark.parametrize("label", [{}, {"classes": list(range(7))}], ids=["awaited", "all given"])
def test_check_says_nothing_of_classes_that_are_all_given_or_awaited(written, label, capsys):
    check(written(**label), sources=True)
    assert "label.classes" not in capsys.readouterr().out


def test_a_source_without_an_object_of_a_given_class_is_refused(written):
    with pytest.raises(ConfigError) as refused:
        look(load(written(classes=["cat", "dog"]), {}))
    assert str(refused.value) == (
        "datasets.train.source: none of the 7 objects can be used. The first is '0/one': class '0' is "
        "not in label.classes: add it to the list (which makes a new generation), or move its objects "
        "to another prefix"
    )


def test_a_pattern_that_finds_no_class_is_refused_whatever_classes_are_given(written):
    for classes in (None, ["cat"]):
        with pytest.raises(
            ConfigError,
            match=r"The first is '0/one': label pattern 'x\(y\)' finds no class in the key",
        ):
            look(load(written(pattern="x(y)", classes=classes), {}))
