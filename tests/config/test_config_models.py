"""The models as such: frozen, described, and the same again after a trip through JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError
from ruamel.yaml import YAML

from cachecd.config import Config, DatasetConfig, load
from cachecd.config.keys import ROOT, Section, below, section_at
from cachecd.config.removed import removed
from tests.docs import configuration

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


def test_a_dataset_is_the_same_after_a_trip_through_json(full):
    """Sampler processes are told their datasets this way."""
    for dataset in full.datasets.values():
        text = json.dumps(dataset.model_dump(mode="json"))
        again = DatasetConfig.model_validate(json.loads(text))
        assert again.model_dump() == dataset.model_dump()


def test_a_configuration_cannot_be_changed(full):
    with pytest.raises(ValidationError):
        full.sampler.workers = 3


def test_every_key_says_what_it_is_for():
    descriptions = {path: field.description or "" for path, field in KEYS.items()}
    assert [path for path, said in descriptions.items() if not said.endswith(".")] == []


def test_every_key_of_this_edition_is_not_removed():
    assert [path for path in KEYS if removed(path.split("."))] == []


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


def test_the_page_of_the_configuration_is_as_its_generator_writes_it():
    assert configuration.PAGE.read_text() == configuration.page(), (
        "run python -m tests.docs.configuration"
    )


def test_a_configuration_without_secrets_has_no_options_and_no_queries():
    read = {"format": "python", "reader": "mine:Reader", "options": {"token": "hush"}}
    listed = {"format": "files", "url": "webhdfs://host/train/?delegation=hush"}
    sources = {"read": {"source": read}, "listed": {"source": listed}}
    cache = {"dir": "/cache", "limit": "10GiB"}
    config = Config.model_validate({"version": 1, "cache": cache, "datasets": sources})
    shown = config.without_secrets()["datasets"]
    assert shown["read"]["source"]["options"] == {"token": "(omitted)"}
    assert shown["listed"]["source"]["url"] == "webhdfs://host/train/"
