"""The schema of files that nobody described."""

from dataclasses import replace

import pytest

from cachecd.sampler.encoding import encode as example
from cachecd.sampler.encoding import infer
from cachecd_client import _core
from cachecd_client.errors import SchemaError
from cachecd_client.files.file_set import FileSet
from cachecd_client.schema import TOKENS, Feature, Schema
from tests.client.foreign import put
from tests.client.records import write
from tests.core.shards import field, flip, frames

encode = _core.encode_example


def features(*paths) -> dict[str, Feature]:
    return {feature.name: feature for feature in FileSet(paths).schema.features}


def test_it_is_inferred_from_the_end_of_a_file_too(tmp_path):
    records = [encode({"a": 1})] * 999 + [encode({"a": 1, "b": [1, 2]})]
    found = features(put(tmp_path / "a", records))
    assert found["a"].shape == ()
    assert found["b"].shape is None  # missing before


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"a": 1, "b": [1.0]}, r"'b' is float32\[\] in .*/0 and float32\[ragged\] in .*/2"),
        ({"a": 1, "b": 1.0, "c": b""}, r"'c' is missing in .*/0 and bytes\[\] in .*/2"),
    ],
)
def test_sidecars_that_disagree_are_an_error_that_names_feature_and_files(tmp_path, other, said):
    values = [{"a": 1, "b": 1.0}, {"a": 1, "b": 1.0}, other]
    paths = [
        write(tmp_path / f"{i}", [example(infer(value), value)], infer(value))
        for i, value in enumerate(values)
    ]
    with pytest.raises(SchemaError, match=said):
        _ = FileSet(paths).schema
    assert FileSet(paths, schema=infer({"a": 1})).schema.names == ("a",)


def test_two_kinds_of_one_feature_are_an_error_that_names_both_places(tmp_path):
    one = put(tmp_path / "one", [encode({"x": 1})])
    two = put(tmp_path / "two", [encode({"y": 1}), encode({"x": 1.0})])
    at = len(frames([encode({"y": 1})]))
    with pytest.raises(
        SchemaError,
        match=rf"'x' is int64 in .*/one, record at byte 0 and float in .*/two, record at byte {at}",
    ):
        _ = FileSet([one, two]).schema


@pytest.mark.parametrize("record", [b"\xff\xff\xff", b"just a text", bytes(100)])
def test_records_that_are_no_examples_are_named_and_what_is_read_is_said(tmp_path, record):
    path = put(tmp_path / "a", [record])
    with pytest.raises(SchemaError, match=r"/a, record at byte 0: .*tf\.train\.Example"):
        _ = FileSet(path).schema


def test_corrupt_records_are_passed_over(tmp_path):
    path = put(tmp_path / "a", [encode({"a": 1})] * 3)
    flip(path, 14)
    assert features(path)["a"].shape == ()


def test_a_later_record_that_does_not_fit_is_named_with_feature_file_and_offset(tmp_path):
    records = [encode({"a": 1, "b": 1})] * 200
    records[100] = encode({"a": [1, 2], "b": 1})  # between those that are looked at
    path = put(tmp_path / "a", records)
    at = len(frames(records[:100]))
    files = FileSet(path)
    assert files.schema["a"].shape == ()
    with pytest.raises(SchemaError, match=r"feature 'a': .* 2 values") as caught:
        list(files.numpy(batch_size=10))
    assert f"{path}: record at byte {at}" in str(caught.value)


def test_no_records_and_records_without_features_are_refused(tmp_path):
    nothing = put(tmp_path / "a", [])
    with pytest.raises(SchemaError, match="the 2 files have no records"):
        _ = FileSet([nothing, nothing]).schema
    with pytest.raises(SchemaError, match=r"no features, and none in 1 other"):
        _ = FileSet(put(tmp_path / "b", [encode({})] * 2)).schema


@pytest.mark.parametrize("position", [0, 100])
def test_a_sequence_example_is_named_instead_of_losing_its_lists(tmp_path, position):
    records = [encode({"id": 1})] * 200
    records[position] += field(2, field(1, field(1, b"frames") + field(2, b"")))
    with pytest.raises(SchemaError, match=r"record at byte \d+: a tf.train.SequenceExample"):
        list(FileSet(put(tmp_path / "a", records)).numpy(batch_size=1))


def test_an_optional_feature_is_named_in_the_schemas_text_and_json():
    at = Feature("at", "int64", "int64", (), unit="us since 1970", optional=True)
    schema = Schema((at, Feature("b", "bytes", "bytes", (), optional=True)))
    assert str(schema) == "at int64[] (us since 1970, optional), b bytes[] (optional)"
    assert Schema.from_json(schema.to_json()) == schema
    with pytest.raises(SchemaError, match="feature 'r': a ragged feature needs no `optional`"):
        Feature("r", "bytes", "bytes", None, optional=True)


def test_tokens_and_their_mask_are_known_by_the_schema():
    tokens = Feature("ids", "bytes", "uint16", (8,), raw=True, unit=TOKENS)
    mask = Feature("mask", "bytes", "bool", (8,), raw=True)
    assert (Schema((tokens, mask)).tokens, Schema((tokens, mask)).mask) == (8, "mask")
    assert (Schema((mask,)).tokens, Schema((mask,)).mask) == (None, "")
    ragged = replace(tokens, shape=None)
    assert (Schema((ragged, mask)).tokens, Schema((ragged, mask)).mask) == (None, "")
    other = replace(tokens, name="targets", shape=(9,))
    assert Schema((tokens, other)).tokens is None, "features with different numbers of tokens"
