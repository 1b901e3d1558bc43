"""What is said of `stratify` where the class of a unit is not known before it is read."""

from __future__ import annotations

import pytest

STRATIFY = "    stratify: true\n"


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        (
            "format: files",
            "found true without source.label, expected source.label with pattern, manifest or column: by "
            "which class an object counts",
        ),
        (
            "format: tfrecord",
            "found true for format tfrecord, expected it for files with a label: the classes of its "
            "records are not known before they are read. a shard mixes the records of 16 units",
        ),
        ("format: parquet", "found true for format parquet, expected it for files with a label: "),
    ],
)
def test_a_dataset_without_known_labels_is_refused_at_the_key(complaints, good, source, complaint):
    [line] = complaints(good.replace("format: files", source) + STRATIFY)
    assert line.startswith(f"10:15: datasets.train.stratify: {complaint}")


@pytest.mark.parametrize(
    "label",
    ["{pattern: '^([^/]+)/'}", "{manifest: 's3://b/l.csv'}", "{pattern: (a), classes: [a]}"],
)
def test_every_label_that_is_known_before_the_read_will_do(loaded, good, label):
    text = good.replace("format: files", f"format: files\n      label: {label}")
    assert loaded(text + STRATIFY).datasets["train"].stratify
    assert not loaded(text).datasets["train"].stratify
