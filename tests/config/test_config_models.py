"""The models as such: frozen, described, and the same again after a trip through JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError
from ruamel.yaml import YAML

from cachecd.config import Config, DatasetConfig, Percent, default_endpoint, load
from cachecd.config.keys import ROOT, Section, below, section_at
from cachecd.config.removed import removed
from cachecd.quantities import format_duration, format_size

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = REPOSITORY / "deploy" / "config"


def _walk(section, prefix):
    """The path and the field of each key that holds a single value, in the models' order."""
    for name, field in section.model.model_fields.items():
        path, inner = f"{prefix}{name}", below(section, name)
        if inner is None or inner.listed:
            yield path, field
        else:
            yield from _walk(Section(inner.model), f"{path}.NAME." if inner.named else f"{path}.")


KEYS = dict(_walk(ROOT, ""))


@pytest.fixture
def full():
    return load(EXAMPLES / "full.yaml", {})


def test_a_configuration_is_the_same_after_a_trip_through_json(full):
    assert Config.model_validate(json.loads(full.model_dump_json())) == full


def test_a_dataset_is_the_same_after_a_trip_through_json(full):
    """Sampler processes are told their datasets this way."""
    for dataset in full.datasets.values():
        text = json.dumps(dataset.model_dump(mode="json"))
        again = DatasetConfig.model_validate(json.loads(text))
        assert again.model_dump() == dataset.model_dump()


def test_a_share_of_the_disk_is_the_same_after_a_trip_through_json(loaded, good):
    config = loaded(good.replace("500GiB", "12.5%"))
    assert config.cache.limit == Percent(12.5)
    assert Config.model_validate(json.loads(config.model_dump_json())) == config


def test_a_configuration_cannot_be_changed(full):
    with pytest.raises(ValidationError):
        full.sampler.workers = 3


@pytest.mark.parametrize("path", KEYS)
def test_every_key_says_what_it_is_for(path):
    description = KEYS[path].description
    assert description is not None
    assert description.endswith(".")


def test_every_key_of_this_edition_is_not_removed():
    assert [path for path in KEYS if removed(path.split("."))] == []


def test_a_place_in_the_document_leads_to_its_section():
    assert section_at(("datasets", "train", "source", "label")).model.__name__ == "LabelConfig"
    assert section_at(("datasets",)).named
    assert section_at(("cache", "limit")) is None
    assert section_at(("nowhere",)) is None


# --- the examples -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["minimal.yaml", "full.yaml"])
def test_an_example_loads(name):
    assert load(EXAMPLES / name, {}).datasets


def test_the_full_example_shows_every_key():
    document = YAML(typ="safe").load(EXAMPLES / "full.yaml")
    shown = set()

    def walk(value, path):
        below = section_at(path)
        if below is None or below.listed:
            above = [section_at(path[:i]) for i in range(len(path))]
            shown.add(
                ".".join("NAME" if s and s.named else n for s, n in zip(above, path, strict=True))
            )
        else:
            for name, inner in value.items():
                walk(inner, (*path, name))

    walk(document, ())
    assert shown == set(KEYS)


# --- docs/reference.md --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rows():
    """The reference's table of keys: path -> (type, default, what for)."""
    text = (REPOSITORY / "docs" / "reference.md").read_text()
    section = text.split("## Configuration")[1].split("\n## ")[0]
    cells = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    return {first.strip(" `"): tuple(c.strip() for c in rest) for first, *rest in cells}


def test_the_reference_has_every_key_once_and_no_other(rows):
    assert list(rows) == list(_with_datasets(KEYS))


@pytest.mark.parametrize("path", KEYS)
def test_the_reference_gives_each_keys_default(rows, path):
    field = KEYS[path]
    _, default, _ = rows[path]
    if field.is_required():
        assert default == "required"
    elif path == "server.endpoint":
        assert default_endpoint({}) in default
    elif field.default in (None, (), "", {}):
        assert default.startswith(("none", "1GiB, or a quarter", "half of the memory of"))
    else:
        assert default.strip("`") in _written(field.default)


def _with_datasets(paths):
    """The keys, with the dataset itself before its first one."""
    for path in paths:
        if path == "datasets.NAME.source.url":
            yield "datasets.NAME"
        yield path


def _written(value):
    if isinstance(value, bool):
        return [str(value).lower()]
    if isinstance(value, int):
        return [str(value), format_size(value)]
    if isinstance(value, str):
        return [value]
    return [str(value), *([format_duration(value)] if value > 1 else [])]
