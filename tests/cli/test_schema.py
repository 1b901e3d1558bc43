"""`cachecd schema`: one JSON Schema that accepts what loads and refuses what an editor can see."""

from __future__ import annotations

import json

import jsonschema
import pytest
from ruamel.yaml import YAML

from tests.cli.conftest import REPOSITORY


@pytest.fixture(scope="module")
def schema():
    from cachecd.config import Config

    return Config.model_json_schema()


@pytest.fixture(scope="module")
def examples():
    folder = REPOSITORY / "deploy" / "config"
    return [YAML(typ="safe").load(folder / name) for name in ("minimal.yaml", "full.yaml")]


@pytest.fixture(scope="module")
def refused(schema):
    """Whether the schema refuses a document."""
    validator = jsonschema.Draft202012Validator(schema)
    return lambda document: not validator.is_valid(document)


def test_the_schema_is_printed_as_json_and_is_valid_itself(cachecd):
    done = cachecd("schema")
    assert (done.returncode, done.stderr) == (0, "")
    jsonschema.Draft202012Validator.check_schema(json.loads(done.stdout))


def test_the_schema_accepts_the_examples(refused, examples):
    assert not any(map(refused, examples))


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"datasets": {}},
        {"sampler": {"workers": 0}},
        {"sampler": {"wokers": 1}},
        {"cache": {"dir": "/c"}},
        {"frobs": 1},
    ],
)
def test_the_schema_refuses_what_loading_refuses(refused, examples, change):
    assert all(refused({**example, **change}) for example in examples)


def test_every_section_and_key_of_the_schema_is_described(schema):
    for definition in [schema, *schema["$defs"].values()]:
        assert definition["description"]
        for name, key in definition.get("properties", {}).items():
            section = schema["$defs"].get(key.get("$ref", "").rpartition("/")[2], {})
            assert "description" in {**section, **key}, name
