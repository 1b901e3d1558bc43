"""One mistake, one line, at the place where it was made."""

from __future__ import annotations

import pytest

# (what is changed in the good configuration, into what, the complaint)
MISTAKES = {
    "version 2": ("version: 1", "version: 2", "1:10: version: found 2, expected 1"),
    "version true": ("version: 1", "version: true", "1:10: version: found true, expected 1"),
    "version text": ("version: 1", "version: '1'", "1:10: version: found '1', expected 1"),
    "no version": ("version: 1\n", "", "1:1: version: missing: The version of this"),
    "no limit": ("  limit: 500GiB\n", "\n", "2:1: cache.limit: missing: Disk the cache may use"),
    "unknown key": (
        "limit: 500GiB",
        "limit: 500GiB\n  shard_sice: 1GB",
        "5:3: cache.shard_sice: unknown key; did you mean 'shard_size'?",
    ),
    "key elsewhere": (
        "version: 1",
        "version: 1\nworkers: 3",
        "2:1: workers: unknown key here; did you mean sampler.workers?",
    ),
    "key nowhere": (
        "limit: 500GiB",
        "limit: 500GiB\n  zzz: 1",
        "5:3: cache.zzz: unknown key; known: dir, limit, shard_size, reserve_free, window",
    ),
    "scrub": (
        "limit: 500GiB",
        "limit: 500GiB\n  scrub: 20MB/s",
        "5:3: cache.scrub: removed; run `cachecd verify DIR --report` from a timer",
    ),
    "relative dir": (
        "/var",
        "var",
        "3:8: cache.dir: found 'var/lib/cachecd', expected an absolute",
    ),
    "dir of nobody": ("/var/", "~nobody-of-that-name/", "3:8: cache.dir: found '~nobody"),
    "dir with NUL": (
        "/var/lib/cachecd",
        '"/a\\0b"',
        "3:8: cache.dir: found '/a\\x00b', expected text",
    ),
    "limit in bits": (
        "500GiB",
        "500Gib",
        "4:10: cache.limit: found '500Gib', expected a size such as",
    ),
    "limit 0": ("500GiB", "0", "4:10: cache.limit: found 0, expected more than 0"),
    "limit 120%": ("500GiB", "120%", "4:10: cache.limit: found '120%', expected a share"),
    "limit null": ("500GiB", "", "4:3: cache.limit: found nothing, expected a size"),
    "small shards": (
        "500GiB",
        "500GiB\n  shard_size: 1KiB",
        "5:15: cache.shard_size: found 1KiB, expected from 64KiB to 4GiB",
    ),
    "large shards": ("500GiB", "500GiB\n  shard_size: 5GiB", "5:15: cache.shard_size: found 5GiB"),
    "dataset name": (
        "train:",
        "my train:",
        "6:3: datasets.my train: found 'my train', expected a name",
    ),
    "no scheme": (
        "s3://bucket/train/",
        "/data",
        "8:12: datasets.train.source.url: found '/data', expected a URL such as file:///data",
    ),
    "no bucket": (
        "s3://bucket/train/",
        "s3:///train/",
        "8:12: datasets.train.source.url: found 's3:///train/', expected a name after s3://",
    ),
    "file host": (
        "s3://bucket/",
        "file://data/",
        "8:12: datasets.train.source.url: found 'file://data/train/', expected file:// and an absolute "
        "path: file:///data/train/",
    ),
    "password": (
        "s3://bucket/",
        "sftp://me:secret@host/",
        "8:12: datasets.train.source.url: found a password, in sftp://me:...@..., expected none",
    ),
    "unknown format": (
        "files",
        "zip",
        "9:15: datasets.train.source.format: found 'zip', expected 'files'",
    ),
    "endpoint": (
        "format: files",
        "format: files\n      endpoint: minio:9000",
        "10:17: datasets.train.source.endpoint: found 'minio:9000', expected a URL",
    ),
    "label of tfrecord": (
        "format: files",
        "format: tfrecord\n      label: {pattern: (a)}",
        "10:14: datasets.train.source.label: found a label for format tfrecord",
    ),
    "label without": (
        "format: files",
        "format: files\n      label: {}",
        "10:14: datasets.train.source.label: found neither pattern, manifest nor column",
    ),
    "two labels": (
        "format: files",
        "format: files\n      label: {pattern: (a), column: true}",
        "10:14: datasets.train.source.label: found pattern and column, expected exactly one of",
    ),
    "label column of nothing": (
        "format: files",
        "format: files\n      label: {column: true}",
        "10:23: datasets.train.source.label.column: found true without source.manifest, expected",
    ),
    "no url": (
        "url: s3://bucket/train/\n      ",
        "",
        "7:5: datasets.train.source.url: missing: The prefix under which all objects lie",
    ),
    "python without reader": (
        "format: files",
        "format: python",
        "7:5: datasets.train.source: found format python without reader, expected reader",
    ),
    "reader of files": (
        "format: files",
        "format: files\n      reader: a:B",
        "10:15: datasets.train.source.reader: found it for format files, expected it for python only",
    ),
    "reader without class": (
        "format: files",
        "format: python\n      reader: my.data",
        "10:15: datasets.train.source.reader: found 'my.data', expected module:Class",
    ),
    "options without a number": (
        "format: files",
        "format: python\n      reader: a:B\n      options: {rate: .nan}",
        "11:16: datasets.train.source.options: found 'rate': nan, expected text, numbers",
    ),
    "manifest of another kind": (
        "format: files",
        "format: files\n      manifest: s3://bucket/list.txt",
        "10:17: datasets.train.source.manifest: found 's3://bucket/list.txt', expected a table",
    ),
    "manifest of nowhere": (
        "url: s3://bucket/train/\n      format: files",
        "format: python\n      reader: a:B\n      manifest: s3://bucket/list.csv",
        "10:17: datasets.train.source.manifest: found it without url, expected url",
    ),
    "label regex": (
        "format: files",
        "format: files\n      label: {pattern: (}",
        "10:24: datasets.train.source.label.pattern: found '(', expected a regular expression: missing )",
    ),
    "a node beyond all": (
        "  train:\n",
        "  train:\n    partition: {index: 8, count: 8}\n",
        "7:24: datasets.train.partition.index: found 8, expected less than partition.count, which is 8",
    ),
    "no node": (
        "  train:\n",
        "  train:\n    partition: {index: 0, count: 0}\n",
        "7:34: datasets.train.partition.count: found 0, expected",
    ),
    "everything held out": (
        "  train:\n",
        "  train:\n    split: {eval: 1.0}\n",
        "7:19: datasets.train.split.eval: found 1.0, expected",
    ),
    "removed key split.side": (
        "  train:\n",
        "  train:\n    split: {eval: 0.1, side: held_out}\n",
        "7:24: datasets.train.split.side: removed; the pinned dataset NAME-eval has what is held out",
    ),
    "split group": (
        "  train:\n",
        "  train:\n    split: {eval: 0.1, group: '(a)|(b)'}\n",
        "7:31: datasets.train.split.group: found '(a)|(b)' with 2 groups, expected exactly one",
    ),
    "name of a split": (
        "  train:\n",
        "  train-eval: {source: {url: 's3://b/', format: files}}\n  train:\n    split: {eval: 0.1}\n",
        "6:15: datasets.train-eval: found a dataset of this name, which is that of what "
        "datasets.train.split holds out",
    ),
    "label groups": (
        "format: files",
        "format: files\n      label: {pattern: (a)(b)}",
        "10:24: datasets.train.source.label.pattern: found '(a)(b)' with 2 groups",
    ),
    "label no group": (
        "format: files",
        "format: files\n      label: {pattern: a}",
        "10:24: datasets.train.source.label.pattern: found 'a' with 0 groups",
    ),
    "no classes": (
        "format: files",
        "format: files\n      label: {pattern: (a), classes: []}",
        "10:38: datasets.train.source.label.classes: found none, expected at least one",
    ),
    "classes as text": (
        "format: files",
        "format: files\n      label: {pattern: (a), classes: cat}",
        "10:38: datasets.train.source.label.classes: found 'cat', expected a list",
    ),
    "a class twice": (
        "format: files",
        "format: files\n      label: {pattern: (a), classes: [cat, dog, cat]}",
        "10:49: datasets.train.source.label.classes.2: found 'cat' again, which is class 0 already, "
        "expected each class once",
    ),
    "a number twice": (
        "format: files",
        "format: files\n      label: {pattern: (a), classes: [7, '7']}",
        "10:42: datasets.train.source.label.classes.1: found '7' again, which is class 0 already",
    ),
    "a class that is true": (
        "format: files",
        "format: files\n      label: {pattern: (a), classes: [cat, true]}",
        "10:44: datasets.train.source.label.classes.1: found true, expected the name of a class: text or",
    ),
    "a class of nothing": (
        "format: files",
        "format: files\n      label: {pattern: (a), classes: [cat, '']}",
        "10:44: datasets.train.source.label.classes.1: found '', expected the name of a class",
    ),
    "a fraction of a class": (
        "format: files",
        "format: files\n      label: {pattern: (a), classes: [1.5]}",
        "10:39: datasets.train.source.label.classes.0: found 1.5, expected the name of a class",
    ),
    "a class that is a list": (
        "format: files",
        "format: files\n      label: {pattern: (a), classes: [[cat]]}",
        "10:39: datasets.train.source.label.classes.0: found ['cat'], expected the name of a class",
    ),
    "classes without a pattern": (
        "format: files",
        "format: files\n      label: {classes: [cat]}",
        "10:14: datasets.train.source.label: found neither pattern, manifest nor column",
    ),
}


@pytest.mark.parametrize(("old", "new", "complaint"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_reported_where_it_is(complaints, good, old, new, complaint):
    (line,) = complaints(good.replace(old, new))
    assert line.startswith(complaint)


# (what follows the keys of train, the complaint)
ADDED = {
    "resize alone": (
        "transform: [resize]",
        "10:17: datasets.train.transform.0: found nothing, expected resize: a number of pixels",
    ),
    "resize by text": (
        "transform: [{resize: big}]",
        "10:17: datasets.train.transform.0: found 'big', expected resize",
    ),
    "resize to 0": (
        "transform: [a:b, {resize: 0}]",
        "10:22: datasets.train.transform.1: found 0, expected resize",
    ),
    "decode by number": (
        "transform: [{decode_image: 3}]",
        "10:17: datasets.train.transform.0: found 3, expected decode_image: the name",
    ),
    "unknown step": (
        "transform: [crop]",
        "10:17: datasets.train.transform.0: found 'crop', expected decode_image, resize, "
        "center_crop, class_map, decode_audio or module:function",
    ),
    "removed step": (
        "transform: [{tokenize: a:b}]",
        "10:17: datasets.train.transform.0: tokenize: removed; use a function of your own",
    ),
    "removed key interleave": (
        "interleave: 4",
        "10:5: datasets.train.interleave: removed; a shard always mixes the records of 16 units",
    ),
    "removed key sources": (
        "sources: []",
        '10:5: datasets.train.sources: removed; use epochs({"web": 0.7, "code": 0.3})',
    ),
    "removed key stratify": (
        "stratify: true",
        "10:5: datasets.train.stratify: removed; use label.classes and a larger grow.first",
    ),
    "function of what": (
        "transform: [{a:b: 3}]",
        "10:17: datasets.train.transform.0: found an argument, 3, expected none",
    ),
    "two steps in one": (
        "transform: [{a:b: , c:d: }]",
        "10:17: datasets.train.transform.0: found a mapping, expected a step",
    ),
    "no list": ("transform: 5", "10:16: datasets.train.transform: found 5, expected a list"),
    "refresh 0": (
        "evict: {refresh: 0}",
        "10:22: datasets.train.evict.refresh: found 0, expected more than 0",
    ),
    "refresh 2": (
        "evict: {refresh: 2}",
        "10:22: datasets.train.evict.refresh: found 2, expected at most 1",
    ),
    "negative seed": ("seed: -1", "10:11: datasets.train.seed: found -1, expected at least 0"),
    "seed of 65 bits": (
        f"seed: {2**64}",
        f"10:11: datasets.train.seed: found {2**64}, expected at most {2**64 - 1}",
    ),
    "seed of 5000 digits": (f"seed: {'9' * 5000}", "10:11: datasets.train.seed: found '999"),
    "pin yes": ("pin: yes", "10:10: datasets.train.pin: found 'yes', expected true or false"),
    "generation true": (
        "generation: true",
        "10:17: datasets.train.generation: found true, expected a whole number",
    ),
    "wait for what": (
        "grow: {wait: true}",
        "10:18: datasets.train.grow.wait: found true without per_epoch",
    ),
    "a pinned set is not listed again": (
        "pin: true\n    relist: 10m",
        "11:13: datasets.train.relist: found relist for a pinned dataset, expected none",
    ),
    "first 0": (
        "grow: {first: 0}",
        "10:19: datasets.train.grow.first: found 0, expected more than 0",
    ),
    "first above its limit": (
        "grow: {first: 2GiB}\n    limit: 1GiB",
        "10:19: datasets.train.grow.first: found 2GiB, expected at most this dataset's limit, 1GiB",
    ),
    "grow a list": (
        "grow: [1GiB]",
        "10:11: datasets.train.grow: found ['1GiB'], expected a section",
    ),
}


@pytest.mark.parametrize(("added", "complaint"), ADDED.values(), ids=ADDED.keys())
def test_a_mistake_in_a_dataset_is_reported_where_it_is(complaints, good, added, complaint):
    (line,) = complaints(f"{good}    {added}\n")
    assert line.startswith(complaint)


# (what follows the datasets, the complaint)
APPENDED = {
    "fewer connections than workers": (
        "sampler: {workers: 8, connections: 4}",
        "10:36: sampler.connections: found 4, expected at least one for each worker (sampler.workers is 8)",
    ),
    "fewer by default": (
        "sampler: {workers: 64}",
        "10:1: sampler.connections: found 32, expected at least one for each worker "
        "(sampler.workers is 64)",
    ),
    "no workers": ("sampler: {workers: 0}", "10:20: sampler.workers: found 0, expected at least 1"),
    "bandwidth in bits": (
        "sampler: {bandwidth: 600Mb/s}",
        "10:22: sampler.bandwidth: found '600Mb/s', expected a rate",
    ),
    "python by name": (
        "sampler: {python: python3}",
        "10:19: sampler.python: found 'python3', expected an absolute path",
    ),
    "tcp socket": (
        "server: {endpoint: 'tcp://*:5'}",
        "10:20: server.endpoint: found 'tcp://*:5', expected ipc:// and an absolute path",
    ),
    "relative socket": (
        "server: {endpoint: ipc://a}",
        "10:20: server.endpoint: found 'ipc://a', expected ipc:// and an absolute path",
    ),
    "abstract socket": (
        "server: {endpoint: 'ipc://@a'}",
        "10:20: server.endpoint: found 'ipc://@a', expected ipc:// and an absolute path",
    ),
    "section of text": ("sampler: fast", "10:10: sampler: found 'fast', expected a section"),
}


@pytest.mark.parametrize(("appended", "complaint"), APPENDED.values(), ids=APPENDED.keys())
def test_a_mistake_outside_the_datasets_is_reported_where_it_is(
    complaints, good, appended, complaint
):
    (line,) = complaints(good + appended)
    assert line.startswith(complaint)


def test_a_socket_path_of_107_bytes_is_taken_and_one_of_108_is_refused_with_its_length(
    loaded, complaints, good
):
    path = "/" + "é" * 53
    assert len(path.encode()) == 107
    assert loaded(f"{good}server: {{endpoint: 'ipc://{path}'}}").server.endpoint == f"ipc://{path}"
    (line,) = complaints(f"{good}server: {{endpoint: 'ipc://{path}x'}}")
    assert line.startswith("10:20: server.endpoint: found a socket path of 108 bytes")
    assert "expected at most 107" in line


def test_all_mistakes_are_reported_at_once_in_the_order_of_the_file(complaints, good):
    text = good.replace("500GiB", "lots").replace("files", "folders").replace("dir:", "dri:")
    lines = complaints(text + "sampler: {workers: 0, connections: -1}\n")
    assert [line.split(" ")[1] for line in lines] == [
        "cache.dir:",
        "cache.dri:",
        "cache.limit:",
        "datasets.train.source.format:",
        "sampler.workers:",
        "sampler.connections:",
    ]


def test_a_dataset_without_a_source_is_reported_at_its_name(complaints):
    text = "version: 1\ncache: {dir: /c, limit: 1GiB}\ndatasets:\n  train:\n    seed: 1\n"
    assert complaints(text) == [
        "4:3: datasets.train.source: missing: Where the examples come from, {url: ..., format: ...}"
    ]


@pytest.mark.parametrize("written", ["", "{}"])
def test_no_datasets_at_all_are_reported_at_their_key(complaints, written):
    (line,) = complaints(f"version: 1\ncache: {{dir: /c, limit: 1GiB}}\ndatasets: {written}\n")
    assert line.startswith("3:")
    assert "datasets: found no" in line
