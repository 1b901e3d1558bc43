"""Features that the configuration declares, and the advice to declare one."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import TypeAdapter
from ruamel.yaml import YAML

from cachecd.config.source import FeatureConfig
from cachecd.sampler.encoding import declared, encode, explain, infer
from cachecd_client import _core
from cachecd_client.errors import SchemaError
from cachecd_client.schema import Feature, Schema, form, infer_forms
from tests.core.shards import frames

FEATURES = TypeAdapter(dict[str, FeatureConfig])


def features_of(text: str) -> dict[str, FeatureConfig]:
    return FEATURES.validate_python(YAML(typ="safe").load(text))


def advised(text: str) -> dict[str, FeatureConfig]:
    """The features that a refusal advises to declare."""
    return features_of(text.partition("add source.features: ")[2])


def refusal(schema: Schema, record: dict) -> str:
    with pytest.raises(SchemaError) as caught:
        encode(schema, record)
    return str(caught.value)


def carry(tmp_path, schema, record):
    """What append_frames says of a record."""
    writer = _core.ShardWriter(str(tmp_path / "a"))
    body = frames([_core.encode_example(record)])
    *_, misfits = writer.append_frames(body, schema=schema.for_writer())
    writer.abort()
    return misfits


def test_a_declared_feature_has_the_declared_form_and_others_that_of_the_first_record():
    first = infer({"id": 1, "box": np.zeros(2, np.float32), "label": 3, "pixels": b"1234"})
    schema = declared(
        first,
        features_of(
            "{box: {dtype: float32, shape: [2, 3]}, label: {dtype: int64, shape: [null]}, "
            "caption: {dtype: bytes, optional: true}, pixels: {dtype: uint8, shape: [4]}, "
            "more: {dtype: float32, shape: [null], optional: true}}"
        ),
    )
    assert schema == Schema(
        (
            Feature("box", "float", "float32", (2, 3)),
            Feature("caption", "bytes", "bytes", (), optional=True),
            Feature("id", "int64", "int64", ()),
            Feature("label", "int64", "int64", None),
            Feature("more", "float", "float32", None),
            Feature("pixels", "bytes", "uint8", (4,), raw=True),
        )
    )


def test_class_names_and_units_of_the_first_records_stay():
    label = Feature("label", "int64", "int64", (), classes=("a", "b"))
    schema = declared(Schema((label,)), features_of("{label: {dtype: int64, optional: true}}"))
    assert schema["label"] == Feature("label", "int64", "int64", (), False, ("a", "b"), "", True)


def test_values_without_a_form_of_their_own_need_a_declaration():
    record = {"tokens": [], "id": 1}
    with pytest.raises(SchemaError, match="the kind of an empty list is unknown"):
        infer(record)
    given = features_of("{tokens: {dtype: int64, shape: [null]}}")
    schema = declared(infer(record, given), given)
    assert schema["tokens"].shape is None
    assert _core.decode_example(encode(schema, record))["id"] == ("int64", [1])


def test_first_records_that_disagree_need_a_declaration():
    records = [{"x": 1}, {"x": 0.5}, {"x": 2}]
    forms = [form(str(n), _core.encode_example(record)) for n, record in enumerate(records)]
    with pytest.raises(SchemaError, match="feature 'x' is int64 in 0 and float in 1"):
        infer_forms(forms)
    given = features_of("{x: {dtype: float32}}")
    assert declared(infer_forms(forms, given), given)["x"] == Feature("x", "float", "float32", ())


@pytest.mark.parametrize(
    ("form", "value", "stored"),
    [
        ("{dtype: float32, shape: [2, 2]}", np.ones((2, 2), np.float32), ("float", [1.0] * 4)),
        ("{dtype: float32, shape: [2]}", [0.5, 0.25], ("float", [0.5, 0.25])),
        ("{dtype: bytes, shape: [2]}", [b"a", b"b"], ("bytes", [b"a", b"b"])),
        ("{dtype: int64, shape: [null]}", 7, ("int64", [7])),
    ],
)
def test_values_are_stored_in_the_declared_form(form, value, stored):
    schema = declared(Schema(()), features_of(f"{{x: {form}}}"))
    assert _core.decode_example(encode(schema, {"x": value}))["x"] == stored
    with pytest.raises(SchemaError):
        encode(schema, {"x": [[1, 2], [3, 4], [5, 6]]})


FIRST = {"id": 1, "box": np.zeros(4, np.float32), "name": b"n"}


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"caption": b"text"}, "{caption: {dtype: bytes, optional: true}}"),
        ({"words": [b"a", b"b"]}, "{words: {dtype: bytes, shape: [null]}}"),
        ({"id": None}, "{id: {dtype: int64, optional: true}}"),
        ({"box": None}, "{box: {dtype: float32, shape: [4], optional: true}}"),
        ({"box": np.zeros(8, np.float32)}, "{box: {dtype: float32, shape: [null]}}"),
        ({"name": [b"a", b"b"]}, "{name: {dtype: bytes, shape: [null]}}"),
        ({"no": 1}, '{"no": {dtype: int64, optional: true}}'),
        ({"a: b": 1}, '{"a: b": {dtype: int64, optional: true}}'),
    ],
)
def test_a_misfit_is_admitted_after_the_advised_yaml_is_pasted(tmp_path, changes, advice):
    schema = infer(FIRST)
    record = {name: value for name, value in {**FIRST, **changes}.items() if value is not None}
    [misfit] = carry(tmp_path, schema, record)
    for text in (explain(schema, misfit), refusal(schema, record)):
        assert text.endswith(f"; add source.features: {advice}")
        wider = declared(schema, advised(text))
        assert carry(tmp_path, wider, record) == []
        assert carry(tmp_path, wider, FIRST) == []
        encode(wider, record)


def test_what_a_declaration_cannot_admit_gets_no_advice(tmp_path):
    schema = infer({**FIRST, "image": np.zeros((2, 2), np.uint8)})
    for changes in ({"id": 0.5}, {"image": bytes(9)}):
        record = {**FIRST, "image": bytes(4), **changes}
        [misfit] = carry(tmp_path, schema, record)
        assert explain(schema, misfit) == misfit[1]
    assert "source.features" not in refusal(schema, {**FIRST, "image": np.zeros((3, 3), np.uint8)})


def test_the_refusal_of_a_new_feature_says_where_the_schema_comes_from(tmp_path):
    [misfit] = carry(tmp_path, infer(FIRST), {**FIRST, "caption": b"text"})
    assert explain(infer(FIRST), misfit) == (
        "feature 'caption' is not in the schema, which comes from the first 64 records; "
        "add source.features: {caption: {dtype: bytes, optional: true}}"
    )
