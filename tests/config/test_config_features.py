"""What `source.features` takes, and what is said of mistakes in it."""

from __future__ import annotations

import pytest

from cachecd.config.identity import directory_name, identity_of

TFRECORD = "format: tfrecord\n      features: "


def of(good, features):
    return good.replace("format: files", TFRECORD + features)


def test_a_feature_is_a_single_value_that_every_record_has_unless_it_says_otherwise(loaded, good):
    text = "{a: {dtype: bytes}, b: {dtype: uint8, shape: [2, 3]}, c: {dtype: int64, shape: [null]}}"
    features = loaded(of(good, text)).datasets["train"].source.features
    assert {name: each.extents for name, each in features.items()} == {
        "a": (),
        "b": (2, 3),
        "c": None,
    }
    assert not features["a"].optional


@pytest.mark.parametrize(
    ("features", "complaint"),
    [
        ("{a: {}}", "features.a.dtype: missing"),
        ("{a: {dtype: string}}", "features.a.dtype: found 'string'"),
        ("{a: {dtype: bytes, shape: 4}}", "features.a.shape: found 4, expected [] for a single"),
        ("{a: {dtype: int64, shape: [null, 3]}}", "features.a.shape: found [None, 3], expected []"),
        ("{a: {dtype: int64, shape: [0]}}", "features.a.shape: found [0], expected []"),
        ("{a: {dtype: int64, shape: [true]}}", "features.a.shape: found [True], expected []"),
        ("{a: {dtype: int64, kind: x}}", "features.a.kind: unknown key"),
    ],
)
def test_a_mistake_is_named_with_its_place(complaints, good, features, complaint):
    [line] = complaints(of(good, features))
    assert complaint in line


@pytest.mark.parametrize("form", ["files", "npy\n      array: {window: 4}"])
def test_formats_whose_records_are_all_alike_take_no_features(complaints, loaded, good, form):
    text = good.replace("format: files", f"format: {form}\n      features: {{a: {{dtype: bytes}}}}")
    [line] = complaints(text)
    assert "source.features: all records of format" in line
    assert loaded(f"{text}    transform: my.module:function\n").datasets["train"].source.features


def test_features_are_part_of_the_generations_name_only_if_given(loaded, good):
    names = [
        directory_name(identity_of(loaded(of(good, text)).datasets["train"]))
        for text in ("{}", "{a: {dtype: bytes}}", "{a: {dtype: bytes, optional: true}}")
    ]
    plain = loaded(good.replace("format: files", "format: tfrecord")).datasets["train"]
    assert names[0] == directory_name(identity_of(plain))
    assert len(set(names)) == 3
