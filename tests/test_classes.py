"""The classes of a label, given or waited for: what they decide, and what is said of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cachecd import events as ev
from cachecd.cli.check import command as check
from cachecd.config import DatasetConfig, load
from cachecd.errors import ConfigError
from cachecd.firstlook import check_sources
from cachecd.model import SetAside
from cachecd.preflight import generation_of, listing_of
from cachecd.rules import AWAITS_CLASSES
from cachecd.status import document
from tests.world import FOOTPRINT, UNIT, Units, World, train, world

PATTERN = r"^([^/]+)/"


def dataset(label: dict[str, Any] | None) -> DatasetConfig:
    source = {"url": "s3://bucket/train/", "format": "files", "label": label}
    return DatasetConfig.model_validate({"source": source, "transform": ["decode_image"]})


# --- what a generation is made of


def test_a_generation_has_the_same_name_on_every_machine():
    assert generation_of(dataset(None)) == "1-6df60a24"
    assert generation_of(dataset({"pattern": PATTERN})) == "1-2c7f8e6e"


def test_the_classes_and_their_order_are_part_of_the_generation_and_not_of_the_listing():
    labels = [
        {"pattern": PATTERN},
        {"pattern": PATTERN, "classes": ["cat"]},
        {"pattern": PATTERN, "classes": ["cat", "dog"]},
        {"pattern": PATTERN, "classes": ["dog", "cat"]},
    ]
    assert len({generation_of(dataset(label)) for label in labels}) == len(labels)
    assert len({listing_of(dataset(label)) for label in labels}) == 1


# --- what a rank and `status` are told meanwhile


def waits(reply: ev.Command) -> str:
    assert isinstance(reply, ev.ReplyWaiting)
    return reply.reason


def waits_for(w: World) -> str:
    return str(document(w.state, {}, 0.0)["datasets"]["train"]["waits_for"])


def test_a_source_whose_classes_are_awaited_says_so_until_it_is_listed():
    units = Units([])
    rules = train(awaits=AWAITS_CLASSES, first=3 * UNIT)
    w = World(8 * FOOTPRINT, {rules: units}, unlisted={"train"})
    said = (
        "classes are numbered when the listing has come to its end, and nothing is sampled before; "
        "label.classes in the configuration names them and ends the wait"
    )
    assert waits(w.acquire("train", "job", 0)) == f"listing the source: {said}"
    assert waits_for(w) == said
    units.append([UNIT] * 10)
    w.feed(ev.Listed("train", complete=True))
    assert waits(w.acquire("train", "job", 0)) == ""
    assert waits_for(w) == ""


def test_a_source_without_labels_waits_for_its_first_page_alone():
    w = World(8 * FOOTPRINT, {train(): Units([])}, unlisted={"train"})
    assert waits(w.acquire("train", "job", 0)) == "listing the source"
    assert waits_for(w) == ""


def test_of_reasons_without_number_status_tells_the_most_frequent():
    aside = [SetAside(n, f"{n}", f"class {n} is not in label.classes") for n in range(5000)]
    aside += [SetAside(5000, "again", "class 4999 is not in label.classes")]
    found = document(world().state, {"train": aside}, 0.0)["datasets"]["train"]["set_aside"]
    assert found["units"] == 5001
    assert len(found["reasons"]) == 100
    assert found["reasons"]["class 4999 is not in label.classes"] == 2


# --- what a first look at the source says


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


def test_check_says_which_classes_it_has_seen_that_are_not_given(written, capsys):
    check(written(classes=[3]), sources=True)
    said = capsys.readouterr().out
    assert "labels by ^([^/]+)/, of 1 classes\n" in said
    assert (
        "6 of the first 7 objects are of classes that label.classes does not have: '0', '1', '2', "
        "'4', '5' and 1 more; they will be set aside\n"
    ) in said
    check(written(classes=[3]), sources=True, as_json=True)
    found = json.loads(capsys.readouterr().out)["resolved"]["datasets"]["train"]["noticed"]
    assert found.startswith("6 of the first 7 objects")


@pytest.mark.parametrize("label", [{}, {"classes": list(range(7))}], ids=["awaited", "all given"])
def test_check_says_nothing_of_classes_that_are_all_given_or_awaited(written, label, capsys):
    check(written(**label), sources=True)
    assert "label.classes" not in capsys.readouterr().out


def test_a_source_without_an_object_of_a_given_class_is_refused_with_those_it_has(written):
    with pytest.raises(ConfigError) as refused:
        check_sources(load(written(classes=["cat", "dog"]), {}))
    assert str(refused.value) == (
        f"datasets.train.source.label.classes: none of the 7 objects under file://{written().parent}"
        "/data/ is of a class in the list; found '0', '1', '2', '3', '4' and 2 more, expected names "
        "such as 'cat'"
    )


def test_a_pattern_that_finds_no_class_is_refused_whatever_classes_are_given(written):
    for classes in (None, ["cat"]):
        with pytest.raises(
            ConfigError, match=r"label\.pattern: 'x\(y\)' matches none of the 7 keys"
        ):
            check_sources(load(written(pattern="x(y)", classes=classes), {}))
