"""One mistake, one line, at the place where it was made."""

from __future__ import annotations

import pytest

# (what is changed in the good configuration, into what, the complaint)
MISTAKES = [
    ("version: 1", "version: 2", "1:10: version: found 2, but this cachecd reads only version 1"),
    ("version: 1\n", "", "1:1: version: missing: set it. Its meaning: The version of this"),
    ("  limit: 500GiB\n", "\n", "2:1: cache.limit: missing: set it. Its meaning: Maximum disk"),
    ("limit: 500GiB", "limit: 500GiB\n  shard_sice: 1GB",
     "5:3: cache.shard_sice: unknown key; did you mean 'shard_size'?"),
    ("version: 1", "version: 1\nworkers: 3",
     "2:1: workers: unknown key; known: version, cache, datasets, sampler, server"),
    ("limit: 500GiB", "limit: 500GiB\n  scrub: 20MB/s",
     "5:3: cache.scrub: removed; run `cachecd verify DIR --report` from a timer"),
    ("/var", "var", "3:8: cache.dir: found 'var/lib/cachecd', expected an absolute"),
    ("/var/lib/cachecd", '"/a\\0b"', "3:8: cache.dir: found '/a\\x00b', expected text"),
    ("500GiB", "500Gib", "4:10: cache.limit: found '500Gib', expected a size such as"),
    ("500GiB", "0", "4:10: cache.limit: found 0, expected more than 0"),
    ("500GiB", "120%", "4:10: cache.limit: found '120%', expected a share"),
    ("500GiB", "1MiB", "4:10: cache.limit: found 1MiB, expected at least one shard"),
    ("500GiB", "500GiB\n  shard_size: 1KiB",
     "5:15: cache.shard_size: found 1KiB, expected from 64KiB to 4GiB"),
    ("train:", "my train:", "6:3: datasets.my train: found 'my train', expected a name"),
    ("s3://bucket/train/", "/data",
     "8:12: datasets.train.source.url: found '/data', expected a URL such as file:///data"),
    ("s3://bucket/train/", "s3:///train/",
     "8:12: datasets.train.source.url: found 's3:///train/', expected s3://BUCKET/PREFIX/"),
    ("s3://bucket/", "file://data/",
     "8:12: datasets.train.source.url: found 'file://data/train/', expected "
     "file:///FOLDER/, an absolute path without '.' and '..'"),
    ("s3://bucket/", "file:///data/../",
     "8:12: datasets.train.source.url: found 'file:///data/../train/', expected file:///FOLDER/, an "
     "absolute path without '.' and '..'"),
    ("s3://bucket/", "gs://bucket//",
     "8:12: datasets.train.source.url: found 'gs://bucket//train/', expected gs://BUCKET/PREFIX/, "
     "without parts that are empty, '.' or '..', or control characters"),
    ("s3://bucket/", "https://token@host/",
     "8:12: datasets.train.source.url: found a password in https://...@...: remove it"),
    ("s3://bucket/", "sftp://me:secret@host/",
     "8:12: datasets.train.source.url: found a password in sftp://...@...: remove it"),
    ("files", "zip", "9:15: datasets.train.source.format: found 'zip', expected 'files'"),
    ("format: files", "format: tfrecord\n      label: {pattern: (a)}",
     "10:14: datasets.train.source.label: only format files has `label`, but the format is tfrecord"),
    ("format: files", "format: webdataset\n      join: {a: '*'}",
     "10:13: datasets.train.source.join: only format files has `join`, but the format is webdataset"),
    ("url: s3://bucket/train/\n      ", "",
     "7:5: datasets.train.source.url: missing: set it to the prefix of all objects"),
    ("format: files", "format: python",
     "7:5: datasets.train.source: `reader` is missing: set it to module:Class"),
    ("format: files", "format: python\n      reader: my.data",
     "10:15: datasets.train.source.reader: found 'my.data', expected module:Class"),
    ("format: files", "format: python\n      reader: a:B\n      options: {rate: .nan}",
     "11:16: datasets.train.source.options: the option 'rate' is nan, expected text, a number"),
    ("url: s3://bucket/train/\n      format: files",
     "format: python\n      reader: a:B\n      manifest: s3://bucket/list.csv",
     "10:17: datasets.train.source.manifest: found `manifest` without `url`: set `url`"),
    ("  train:\n", "  train-eval: {source: {url: 's3://b/', format: files}}\n  train:\n    split: "
     "{eval: 0.1}\n",
     "6:15: datasets.train-eval: `datasets.train.split` creates a dataset with this name"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "complaint"), MISTAKES)
def test_a_mistake_is_reported_where_it_is(complaints, good, old, new, complaint):
    (line,) = complaints(good.replace(old, new))
    assert line.startswith(complaint)


# What is added to a section of the good configuration, as its line 10; the column and the complaint.
ADDED = {
    "datasets.train.source.": [
        ("endpoint: minio:9000", 17, "endpoint: found 'minio:9000', expected a URL"),
        ("label: {}", 14, "label: found neither pattern, manifest nor column"),
        ("label: {pattern: (a), column: true}", 14,
         "label: found pattern and column: set exactly one of"),
        ("label: {column: true}", 23, "label.column: `label.column` needs `source.manifest`"),
        ("reader: a:B", 15, "reader: only format python has `reader`, but the format is files"),
        ("manifest: s3://bucket/list.txt", 17,
         "manifest: found 's3://bucket/list.txt', expected a file name"),
        ("label: {pattern: (}", 24,
         "label.pattern: '(' is not a regular expression: missing )"),
        ("label: {pattern: (a)(b)}", 24, "label.pattern: found '(a)(b)' with 2 groups"),
        ("label: {pattern: (a), classes: []}", 38,
         "label.classes: found [], expected at least one class"),
        ("label: {pattern: (a), classes: [cat, dog, cat]}", 49,
         "label.classes.2: 'cat' is class 0 already: remove it here"),
        ("label: {pattern: (a), classes: [cat, true]}", 44,
         "label.classes.1: found true, expected the name of a class: text or"),
        ("match: []", 14, "match: found [], expected a pattern such as '*.jpg', or a list"),
        ("match: ['*.jpg', 7]", 24, "match.1: found 7, expected text"),
        ("join: images/*", 13, "join: found 'images/*', expected names with patterns, such as {im"),
        ("join: {}", 13, "join: found none, expected names with patterns, such as {image: images/"),
        ("join: {image: i*, mask: m}", 31, "join.mask: found 'm', expected a pattern below"),
        ("join: {key: 'i*'}", 19, "join.key: a feature cannot have the name 'key': use letters,"),
        ("join: {a: ../i*}", 17, "join.a: found '../i*', expected a pattern below source.url"),
        ("join: {a: b*}\n      match: s3://b/a.csv", 13, "join: `join` and `match` exclude"),
    ],
    "datasets.train.": [
        ("partition: {index: 8, count: 8}", 24,
         "partition.index: found 8, expected less than partition.count, which is 8"),
        ("split: {eval: 1.0}", 19, "split.eval: found 1.0, expected"),
        ("split: {eval: 0.1, side: held_out}", 24,
         "split.side: removed; the pinned dataset NAME-eval has the held-out part"),
        ("split: {eval: 0.1, group: '(a)|(b)'}", 31,
         "split.group: found '(a)|(b)' with 2 groups, expected exactly one"),
        ("transform: [resize]", 17,
         "transform.0: found neither size nor shorter, but resize accepts a number"),
        ("transform: [a:b, {resize: 0}]", 22, "transform.1: found 0, but resize accepts"),
        ("transform: [{decode_image: 3}]", 17,
         "transform.0: found 3, but decode_image accepts the name"),
        ("transform: [crop]", 17,
         "transform.0: found 'crop', expected shrink, decode_image, resize, center_crop, "
         "class_map, decode_audio, tokenize, pack, over_groups or module:function"),
        ("transform: [{tokenize: a:b}]", 17,
         "transform.0: found 'a:b', but tokenize accepts {tokenizer: tokenizer.json, sha256: ..."),
        ("transform: [{tokenize: {tokenizer: /nowhere/tokenizer.json}}]", 17,
         "transform.0: `sha256` is missing, by which workers recognize the tokenizer: add"),
        ("transform: [{pack: {window: 64, stride: 65}}]", 17,
         "transform.0: found stride: 65, expected at most the window, 64"),
        ("transform: [{pack: {window: 64, fit: best, remainder: drop}}]", 17,
         "transform.0: found remainder: drop, but `fit: best` pads windows"),
        ("transform: [{pack: {window: 64}}, {pack: {window: 64}}]", 39,
         "transform.1: a second `pack` would take the padding of the first for tokens"),
        ("transform: [{pack: {window: 64, feature: mask}}]", 17,
         "transform.0: found feature: mask, which is a feature that pack adds"),
        ("transform: [{over_groups: windows}]", 17,
         "transform.0: found 'windows', but over_groups accepts module:function"),
        ("interleave: 4", 5, "interleave: removed; a shard always mixes the records of 16 units"),
        ("sources: []", 5, 'sources: removed; use epochs({"web": 0.7, "code": 0.3})'),
        ("stratify: true", 5, "stratify: removed; use label.classes and a larger grow.first"),
        ("transform: [{a:b: 3}]", 17, "transform.0: found the argument 3: remove it"),
        ("transform: 5", 16, "transform: found 5, expected a list"),
        ("evict: {refresh: 0}", 22, "evict.refresh: found 0, expected more than 0"),
        ("seed: -1", 11, "seed: found -1, expected at least 0"),
        ("pin: yes", 10, "pin: found 'yes', expected true or false"),
        ("generation: true", 17, "generation: found true, expected a whole number"),
        ("grow: {wait: true}", 18, "grow.wait: `wait` needs `per_epoch`"),
        ("relist: 10m\n    pin: true", 13,
         "relist: a pinned dataset cannot have `relist`"),
        ("grow: {first: 2GiB}\n    limit: 1GiB", 19,
         "grow.first: found 2GiB, expected at most this dataset's limit, 1GiB"),
        ("grow: [1GiB]", 11, "grow: found ['1GiB'], expected a section"),
    ],
    "": [
        ("sampler: {workers: 8, connections: 4}", 36,
         "sampler.connections: found 4, expected at least one for each worker "
         "(sampler.workers is 8)"),
        ("sampler: {workers: 0}", 20, "sampler.workers: found 0, expected at least 1"),
        ("sampler: {bandwidth: 600Mb/s}", 22,
         "sampler.bandwidth: found '600Mb/s', expected a rate"),
        ("sampler: {python: python3}", 19,
         "sampler.python: found 'python3', expected an absolute path"),
        ("server: {endpoint: 'tcp://*:5'}", 20,
         "server.endpoint: found 'tcp://*:5', expected ipc:// and an absolute path"),
        ("server: {http: '127.0.0.1'}", 16,
         "server.http: found '127.0.0.1', expected an IP address and a port such as 127.0.0.1:9400"),
        ("server: {http: 'node7:9400'}", 16,
         "server.http: found 'node7:9400', expected an IP address and a port"),
        ("server: {http: '127.0.0.1:70000'}", 16,
         "server.http: found '127.0.0.1:70000', expected an IP address and a port"),
        ("server: {http: '0.0.0.0:9400'}", 16,
         "server.http: 0.0.0.0:9400 is not a loopback address, so other machines could read the status: "
         "use 127.0.0.1:9400, or set server.http_any: true"),
        ("sampler: fast", 10, "sampler: found 'fast', expected a section"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("section", "added", "column", "complaint"),
    [(section, *row) for section, rows in ADDED.items() for row in rows],
)
def test_an_added_mistake_is_reported_where_it_is(
    complaints, good, section, added, column, complaint
):
    (line,) = complaints(f"{good}{'  ' * section.count('.')}{added}\n")
    assert line.startswith(f"10:{column}: {section}{complaint}")


def test_a_step_for_no_joined_feature_is_reported(complaints, good):
    added = "      join: {a: 'a*', b: 'b*'}\n    transform: [decode_image]"
    (line,) = complaints(f"{good}{added}\n")
    assert line.startswith("11:17: datasets.train.transform.0: decode_image")
    assert line.endswith("does not name. Set `feature` or `features` to one of a, b")


def test_all_mistakes_are_reported_at_once_in_the_order_of_the_file(complaints, good):
    text = good.replace("500GiB", "lots").replace("files", "folders").replace("dir:", "dri:")
    lines = complaints(text + "sampler: {workers: 0, connections: -1}\n")
    assert [line.split(" ")[1] for line in lines] == [
        "cache.dri:",
        "cache.limit:",
        "datasets.train.source.format:",
        "sampler.workers:",
        "sampler.connections:",
    ]


def test_no_datasets_at_all_are_reported_at_their_key(complaints):
    (line,) = complaints("version: 1\ncache: {dir: /c, limit: 1GiB}\ndatasets: {}\n")
    assert line.startswith("3:")
    assert "datasets: found no" in line
