"""Loading a file: every mistake is found where it was made, and said in one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cachecd.config import Percent, TransformStep, load
from cachecd.errors import ConfigError, LimitTooSmallError


def test_a_minimal_configuration_has_the_documented_defaults(loaded, good):
    config = loaded(good)
    train = config.datasets["train"]
    assert config.cache.dir == Path("/var/lib/cachecd")
    assert config.cache.limit == 500 << 30
    assert (config.cache.shard_size, config.cache.reserve_free) == (64 << 20, 0)
    assert (train.source.url, train.source.format) == ("s3://bucket/train/", "files")
    assert (train.grow.first, train.grow.per_epoch, train.grow.wait) == (None, None, False)
    assert (train.evict.refresh, train.seed, train.pin) == (0.25, 0, False)
    assert (train.generation, train.interleave, train.transform) == (1, 16, ())
    assert (config.sampler.workers, config.sampler.connections) == (2, 32)
    assert config.server.endpoint == "ipc:///run/cachecd/cachecd.sock"


def test_the_socket_is_the_users_own_where_there_is_a_runtime_directory(loaded, good):
    config = loaded(good, XDG_RUNTIME_DIR="/run/user/1000")
    assert config.server.endpoint == "ipc:///run/user/1000/cachecd/cachecd.sock"


def test_a_limit_may_be_a_share_of_the_disk(loaded, good):
    assert loaded(good.replace("500GiB", "80%")).cache.limit == Percent(80.0)


def test_first_defaults_to_1_gib_or_a_quarter_of_the_limit(loaded, good):
    grow = loaded(good).datasets["train"].grow
    assert grow.first_within(100 << 30) == 1 << 30
    assert grow.first_within(1 << 30) == 256 << 20
    assert (
        loaded(good + "    grow: {first: 5MiB}").datasets["train"].grow.first_within(1) == 5 << 20
    )


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("my.module:function", [("my.module:function", None)]),
        ("[decode_image]", [("decode_image", "payload")]),
        ("[{decode_image: jpg}, {resize: 256}]", [("decode_image", "jpg"), ("resize", 256)]),
        ("[resize: [2, 3], a:b]", [("resize", (2, 3)), ("a:b", None)]),
    ],
)
def test_a_transform_is_one_function_or_a_list_of_steps(loaded, good, text, steps):
    found = loaded(f"{good}    transform: {text}\n").datasets["train"].transform
    assert found == tuple(TransformStep(name=name, argument=argument) for name, argument in steps)


def test_a_section_with_all_its_keys_commented_out_is_one_of_defaults(loaded, good):
    text = good + "    grow:\n      # first: 1GiB\nsampler:\n#  workers: 4\nserver:\n"
    assert loaded(text) == loaded(good)


def test_a_dataset_may_be_called_like_a_number(loaded, good):
    assert list(loaded(good.replace("train:\n", "2024:\n")).datasets) == ["2024"]


def test_aliases_stand_for_what_they_name(loaded, good):
    text = good.replace("source:\n", "source: &store\n") + "  eval: {source: *store, pin: true}\n"
    datasets = loaded(text).datasets
    assert datasets["eval"].source == datasets["train"].source


# --- one mistake, one line ----------------------------------------------------------------------

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
        "5:3: cache.zzz: unknown key; known: dir, limit, shard_size, reserve_free, scrub",
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
        "10:14: datasets.train.source.label: found neither pattern nor manifest",
    ),
    "label regex": (
        "format: files",
        "format: files\n      label: {pattern: (}",
        "10:24: datasets.train.source.label.pattern: found '(', expected a regular expression: missing )",
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
        "10:17: datasets.train.transform.0: found 'crop', expected decode_image, resize or module:function",
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
    "interleave 1.5": (
        "interleave: 1.5",
        "10:17: datasets.train.interleave: found 1.5, expected a whole number",
    ),
    "wait for what": (
        "grow: {wait: true}",
        "10:18: datasets.train.grow.wait: found true without per_epoch",
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
    text = good.replace("500GiB", "lots").replace("files", "webdataset").replace("dir:", "dri:")
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
        "4:3: datasets.train: found no source, expected source: {url: ..., format: ...}"
    ]


@pytest.mark.parametrize("written", ["", "{}"])
def test_no_datasets_at_all_are_reported_at_their_key(complaints, written):
    (line,) = complaints(f"version: 1\ncache: {{dir: /c, limit: 1GiB}}\ndatasets: {written}\n")
    assert line.startswith("3:")
    assert "datasets: found no" in line


# --- keys of later versions ---------------------------------------------------------------------

LATER = {
    "cache.scrub": ("500GiB", "500GiB\n  scrub: 7d", "5:10"),
    "datasets.train.source.label.manifest": (
        "format: files",
        "format: files\n      label: {manifest: 's3://b/t.csv'}",
        "10:25",
    ),
    "datasets.train.sources": (
        "source:\n",
        "sources: [{url: 's3://b', format: files}]\n    source:\n",
        "7:14",
    ),
    "datasets.train.split": ("source:\n", "split: {eval: 0.01}\n    source:\n", "7:12"),
    "datasets.train.partition": (
        "source:\n",
        "partition: {index: 0, count: 2}\n    source:\n",
        "7:16",
    ),
    "datasets.train.relist": ("source:\n", "relist: 1h\n    source:\n", "7:13"),
    "sampler.egress_limit": ("version: 1", "version: 1\nsampler: {egress_limit: 1GB}", "2:25"),
    "sampler.idle": ("version: 1", "version: 1\nsampler: {idle: 10m}", "2:17"),
    "server.http": ("version: 1", "version: 1\nserver: {http: '127.0.0.1:9465'}", "2:16"),
}


@pytest.mark.parametrize("key", LATER)
def test_a_key_of_a_later_version_is_refused_at_its_position(complaints, good, key):
    old, new, position = LATER[key]
    assert complaints(good.replace(old, new)) == [
        f"{position}: {key}: not available in this version; remove it"
    ]


@pytest.mark.parametrize("kind", ["webdataset", "parquet", "npy", "python"])
def test_a_format_of_a_later_version_is_refused_with_those_there_are(complaints, good, kind):
    assert complaints(good.replace("files", kind)) == [
        f"9:15: datasets.train.source.format: found '{kind}': not available in this version; "
        "available: files, tfrecord"
    ]


# --- what is wrong before any key means anything ------------------------------------------------

BROKEN = {
    "empty": ("", "1:1: found nothing, expected version: 1"),
    "only comments": ("# nothing\n", "1:1: found nothing, expected version: 1"),
    "a list": ("- version: 1\n", "1:1: found no mapping of keys, expected version: 1"),
    "unclosed": ("version: [1\n", "2:1: not YAML: while parsing a flow sequence: expected ','"),
    "a tab": ("cache:\n\tdir: /x\n", "2:1: found a tab, expected spaces"),
    "two documents": ("version: 1\n---\nversion: 1\n", "2:1: not YAML: expected a single document"),
    "a control character": ("version: 1\ncache: \a\n", "2:8: found the character '\\x07'"),
    "Latin-1": (b"version: 1\n# caf\xe9\n", "2:6: found the byte 0xe9, expected UTF-8"),
    "a tag": ("version: !!python/name:os.system 1", "1:10: version: found the tag"),
    "a set": ("version: !!set {1}", "1:10: version: found the tag"),
    "a merge": ("version: 1\n<<: {a: 1}", "2:1: found <<, expected the keys themselves"),
    "a list as a key": ("? [a]\n: b\n", "1:3: found a key that is not a name"),
    "null as a key": ("~: b\n", "1:1: found a key that is not a name"),
    "an alias of itself": ("version: &a [*a]\n", "1:1: found endless or very deep nesting"),
    "aliases that multiply": (
        "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
        + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n" for a, b in zip("abcdef", "bcdefg", strict=True)),
        "1:1: found endless or very deep nesting",
    ),
    "very deep": ("[" * 5000, "1:1: found endless or very deep nesting"),
}


@pytest.mark.parametrize(("text", "complaint"), BROKEN.values(), ids=BROKEN.keys())
def test_a_file_that_is_no_configuration_at_all_is_one_line(complaints, text, complaint):
    (line,) = complaints(text)
    assert line.startswith(complaint)


def test_a_key_given_twice_is_an_error_that_names_both_lines(complaints, good):
    text = good.replace("  limit: 500GiB\n", "  limit: 500GiB\n  limit: 100GiB\n")
    assert complaints(text) == ["5:3: cache.limit: found twice, first on line 4"]


def test_a_byte_order_mark_is_no_mistake(loaded, good):
    assert loaded("\ufeff" + good) == loaded(good)


def test_an_anchor_may_be_used_again(loaded, good):
    assert loaded(
        good.replace("version: 1", "version: &a 1").replace("url: ", "url: &a ")
    ) == loaded(good)


@pytest.mark.parametrize(("make", "why"), [(Path.mkdir, "Is a directory"), (str, "No such file")])
def test_a_file_that_cannot_be_read_is_named_with_the_reason(tmp_path, make, why):
    path = tmp_path / "cachecd.yaml"
    make(path)
    with pytest.raises(ConfigError, match=f"^{path}: cannot be read: {why}"):
        load(path, {})


def test_a_file_of_a_megabyte_is_not_taken_for_a_configuration(tmp_path):
    path = tmp_path / "shard.tfrecord"
    path.write_bytes(os.urandom(1 << 20) + b"x")
    with pytest.raises(ConfigError, match="more than 1048576 bytes"):
        load(path, {})


# --- ${VAR} -------------------------------------------------------------------------------------


def test_variables_expand_everywhere_in_values(loaded, good):
    text = good.replace("/var/lib", "${ROOT}/${SUB:-lib}").replace("bucket", "${BUCKET}")
    config = loaded(
        text + "sampler:\n  workers: ${WORKERS}\n", ROOT="/var", BUCKET="b", WORKERS="8"
    )
    assert config.cache.dir == Path("/var/lib/cachecd")
    assert config.datasets["train"].source.url == "s3://b/train/"
    assert config.sampler.workers == 8


def test_a_default_stands_in_for_a_variable_that_is_unset_or_empty(loaded, good):
    text = good.replace("500GiB", "${LIMIT:-80%}")
    assert loaded(text).cache.limit == Percent(80.0)
    assert loaded(text, LIMIT="").cache.limit == Percent(80.0)
    assert loaded(text, LIMIT="1GiB").cache.limit == 1 << 30


def test_an_unset_variable_without_a_default_is_named(complaints, good):
    text = good.replace("/var/lib/cachecd", "${ROOT}").replace("500GiB", "${LIMIT}")
    assert complaints(text) == [
        "3:8: cache.dir: the environment variable ROOT is not set; set it or write ${ROOT:-default}",
        "4:10: cache.limit: the environment variable LIMIT is not set; set it or write "
        "${LIMIT:-default}",
    ]


def test_two_dollars_are_a_dollar_and_one_before_anything_else_is_itself(loaded, good):
    text = good.replace("train/", "$${ROOT}/$$5/$x")
    assert loaded(text).datasets["train"].source.url == "s3://bucket/${ROOT}/$5/$x"
    label = good.replace("format: files", "format: files\n      label: {pattern: '^(a)$'}")
    assert loaded(label).datasets["train"].source.label.pattern == "^(a)$"


@pytest.mark.parametrize("written", ["${", "${A", "${}", "${1A}", "${A-b}"])
def test_a_malformed_variable_is_an_error(complaints, good, written):
    (line,) = complaints(good.replace("/var/lib/cachecd", f"'{written}'"), A="x")
    assert line.startswith(f"3:8: cache.dir: found '{written}', expected ${{NAME}}")


def test_an_unquoted_variable_inside_braces_says_that_it_wants_quotes(complaints):
    (line,) = complaints("cache: {dir: ${ROOT}}", ROOT="/x")
    assert line == '1:15: found ${...} inside braces or brackets, expected it in quotes: "${...}"'


def test_a_quoted_variable_stays_text(complaints, good):
    (line,) = complaints(good + "sampler: {workers: '${N}'}", N="8")
    assert line.startswith("10:20: sampler.workers: found '8', expected a whole number")


# --- a limit that cannot hold the configuration -------------------------------------------------


def test_a_limit_below_the_first_sets_is_too_small_and_says_what_would_do(loaded, good):
    text = good + "    grow: {first: 400GiB}\n  eval: {source: {url: 's3://b/', format: files}, "
    with pytest.raises(
        LimitTooSmallError, match=r":4:10: cache\.limit: found 500GiB, expected at least 600GiB"
    ):
        loaded(text + "grow: {first: 200GiB}}\n")
    assert loaded(text + "grow: {first: 100GiB}}\n").cache.limit == 500 << 30


def test_a_limit_below_one_shard_is_too_small(loaded, good):
    with pytest.raises(
        LimitTooSmallError, match=r"cache\.limit: found 1MiB, expected at least one shard"
    ):
        loaded(good.replace("500GiB", "1MiB"))


def test_a_limit_too_small_among_other_mistakes_is_an_ordinary_error(loaded, good):
    with pytest.raises(ConfigError) as caught:
        loaded(good.replace("500GiB", "1MiB").replace("files", "zip"))
    assert type(caught.value) is ConfigError
