"""The ready-made step `tokenize`, with real tokenizers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from cachecd.config import DatasetConfig, SourceConfig, TransformStep
from cachecd.errors import ConfigError, RecordError
from cachecd.sampler.formats import open_format
from cachecd.sampler.transforms import Item, tokenize
from cachecd.sampler.transforms.groups import group_steps
from cachecd_client._core import encode_example
from tests.contracts.format import Bench
from tests.core.shards import frames
from tests.sampler.steps import over
from tests.small_tokenizer import digest, plain, save, tokenizer

TEXTS = [
    "the cat sat on the mat",
    "a dog",
    "",
    "Größe, 大きさ und \N{SNOWMAN}",
    "the <|end|> of it",
]
SOURCE = SourceConfig(url="file:///nowhere/", format="tfrecord")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return Path(save(tmp_path)["tokenizer"])


def opened(path: Path, **options: Any) -> Any:
    argument = {"tokenizer": str(path), "sha256": digest(path), **options}
    [step] = group_steps([TransformStep.model_validate({"tokenize": argument})], SOURCE)
    return step


def run(step: Any, *values: Any) -> list[Item]:
    items: list[Item] = [{} if value is None else {"text": value, "n": 1} for value in values]
    return over(step, items)


def tokens(item: Item) -> list[int]:
    assert not isinstance(item, RecordError), item
    ids: list[int] = item["tokens"].tolist()
    return ids


def test_each_text_becomes_its_tokens_and_other_features_stay(file: Path):
    results = run(opened(file), *(text.encode() for text in TEXTS))
    assert [tokens(item) for item in results] == [plain(text) for text in TEXTS]
    assert [item["tokens"].dtype for item in results] == [np.uint16] * len(TEXTS)  # type: ignore[index]
    assert {frozenset(item) for item in results} == {frozenset({"tokens", "n"})}  # type: ignore[arg-type]
    assert tokenizer().decode(tokens(results[3])) == TEXTS[3]


def test_text_that_spells_a_special_token_is_text(file: Path):
    [result] = run(opened(file), b"the <|end|> of it")
    assert tokenizer().token_to_id("<|end|>") not in tokens(result)


def test_one_token_is_prepended_and_one_appended(file: Path):
    [result, empty] = run(opened(file, prepend="<s>", append="<|end|>"), b"a dog", b"")
    begin, end = tokenizer().token_to_id("<s>"), tokenizer().token_to_id("<|end|>")
    assert tokens(result) == [begin, *plain("a dog"), end]
    assert tokens(empty) == [begin, end]


def test_max_tokens_counts_the_prepended_and_appended_tokens(file: Path):
    [result] = run(opened(file, append="<|end|>", max_tokens=3), b"the cat sat on the mat")
    expected = plain("the cat sat on the mat")[:2]
    assert tokens(result) == [*expected, tokenizer().token_to_id("<|end|>")]


def test_many_texts_are_tokenized_in_calls_of_bounded_size(
    file: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tokenize, "_CALL", 30)
    results = run(opened(file), *(text.encode() for text in TEXTS * 5))
    assert [tokens(item) for item in results] == [plain(text) for text in TEXTS] * 5


def test_a_large_id_makes_the_dtype_uint32_though_no_text_has_it(tmp_path: Path):
    made = Tokenizer(models.WordLevel({"a": 0, "b": 65_536}, unk_token="a"))
    made.save(str(path := tmp_path / "words.json"))
    [result] = run(opened(path), b"a")
    assert result["tokens"].dtype == np.uint32  # type: ignore[index]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "tokenize: the record has no text in 'text'"),
        (5, "tokenize: 'text' is int, expected text"),
        (b"\xff", "tokenize: 'text' is not UTF-8"),
        ("\ud800", "tokenize: 'text' is not UTF-8"),
        (bytes(tokenize.LONGEST + 1), "tokenize: 'text' has 8.0 MiB, expected at most 8.0 MiB"),
    ],
)
def test_a_record_without_a_usable_text_costs_that_record(file: Path, value: Any, message: str):
    before, error, after = run(opened(file), b"a dog", value, b"a dog")
    assert tokens(before) == tokens(after)
    assert str(error).startswith(message)


def test_a_file_that_changed_is_refused(file: Path):
    argument = {"tokenizer": str(file), "sha256": digest(file)}
    file.write_text(file.read_text() + "\n")
    with pytest.raises(
        ConfigError, match=f"has sha256 {digest(file)}, expected {argument['sha256']}"
    ):
        group_steps([TransformStep.model_validate({"tokenize": argument})], SOURCE)


@pytest.mark.parametrize("name", ["append", "prepend"])
def test_a_token_that_the_tokenizer_lacks_is_refused(file: Path, name: str):
    with pytest.raises(ConfigError, match=rf"has no token '<eos>' \({name}\)"):
        opened(file, **{name: "<eos>"})


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path):
    (path := tmp_path / "no.json").write_text(json.dumps({"version": "1.0"}))
    with pytest.raises(ConfigError, match=r"no\.json is no tokenizer\.json: "):
        opened(path)


def test_a_missing_file_is_refused(file: Path):
    argument = {"tokenizer": f"{file}.old", "sha256": "0" * 64}
    with pytest.raises(ConfigError, match=r"tokenizer\.json\.old cannot be read: No such file"):
        group_steps([TransformStep.model_validate({"tokenize": argument})], SOURCE)


def test_a_tokenizer_is_read_from_a_store(file: Path):
    argument = {"tokenizer": f"file://{file}", "sha256": digest(file)}
    [step] = group_steps([TransformStep.model_validate({"tokenize": argument})], SOURCE)
    [result] = run(step, b"a dog")
    assert tokens(result) == plain("a dog")
    missing = {**argument, "tokenizer": f"file://{file}.old"}
    with pytest.raises(ConfigError, match=r"tokenizer\.json\.old cannot be read"):
        group_steps([TransformStep.model_validate({"tokenize": missing})], SOURCE)


def test_tokens_of_different_lengths_are_one_ragged_feature(file: Path, tmp_path: Path):
    argument = {"tokenizer": str(file), "sha256": digest(file)}
    config = {
        "source": {"url": SOURCE.url, "format": "tfrecord"},
        "transform": [{"tokenize": argument}],
    }
    bench = Bench(open_format(DatasetConfig.model_validate(config), ()), tmp_path)
    [shard] = bench.pour([frames([encode_example({"text": t.encode()}) for t in TEXTS])])
    assert len(shard.records) == len(TEXTS)
    assert bench.schema is not None
    [feature] = bench.schema.features
    assert (feature.name, feature.dtype, feature.shape, feature.raw) == (
        "tokens",
        "uint16",
        None,
        True,
    )


def test_a_text_of_which_the_model_makes_a_special_token_costs_that_record(tmp_path: Path):
    made = Tokenizer(models.WordLevel({"the": 0, "</s>": 1, "?": 2}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(["</s>", "?"])
    made.save(str(path := tmp_path / "words.json"))
    good, bad, unknown = run(opened(path, append="</s>"), b"the", b"the </s>", b"a")
    assert tokens(good) == [0, 1]
    assert "the text spells the special token '</s>'" in str(bad)
    assert tokens(unknown) == [2, 1]


def test_a_feature_that_the_tokens_would_replace_costs_that_record(file: Path):
    [error] = over(opened(file), [{"text": b"a dog", "tokens": b"x"}])
    assert "has 'tokens' already: set `into`" in str(error)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("https://me:secret@host/tokenizer.json", "found a password"),
        (
            "https://host/tokenizer.json?X-Amz-Signature=secret",
            "expected the URL of a file, without",
        ),
        ("s3://bucket", "expected s3://BUCKET/PREFIX/"),
        ("s3://bucket/", "expected the URL of a file"),
        ("://x", "expected a URL such as"),
    ],
)
def test_a_url_that_names_no_file_or_has_a_secret_is_refused_without_it(url: str, why: str):
    with pytest.raises(ValueError, match=why) as caught:
        TransformStep.model_validate({"tokenize": {"tokenizer": url, "sha256": "0" * 64}})
    assert "secret" not in str(caught.value.errors()[0]["msg"])  # type: ignore[attr-defined]


def test_a_tokenizer_in_the_home_directory_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("HOME", str(tmp_path))
    argument = {"tokenizer": "~/tokenizer.json", "sha256": "0" * 64}
    context = {"folder": Path("/etc")}
    step = TransformStep.model_validate({"tokenize": argument}, context=context)
    assert step.argument["tokenizer"] == f"{tmp_path}/tokenizer.json"
