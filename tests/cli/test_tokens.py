"""Text on the command line: `init --tokenizer`, and what `check` says of a tokenizer and of packing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cachecd import cli
from cachecd.config import load
from tests.small_tokenizer import save


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number in range(3):
        texts = [f"{n}: {'the cat sat on the mat ' * (n % 9)}" for n in range(100)]
        lines = (json.dumps({"id": n, "text": text}) + "\n" for n, text in enumerate(texts))
        (folder / f"{number}.jsonl").write_text("".join(lines))
    return folder


def test_proposal_with_a_tokenizer_makes_windows_as_it_is(corpus, tmp_path, capsys):
    described = save(tmp_path)
    path = tmp_path / "text.yaml"
    options = ["--tokenizer", described["tokenizer"], "--cache", str(tmp_path / "cache")]
    assert cli.run_command(["init", str(corpus), *options, "--out", str(path)]) == 0
    assert load(path).cache.shard_size == 4 << 20
    tokenize, pack = load(path).datasets["train"].transform
    assert tokenize.argument["sha256"] == described["sha256"]
    assert (pack.argument["window"], pack.argument["stride"]) == (2049, 2048)
    capsys.readouterr()
    assert cli.run_command(["check", str(path), "--sources"]) == 0
    said = capsys.readouterr().out
    assert f"tokens of {described['tokenizer']}, sha256 {described['sha256']}\n" in said
    assert "pack: 300 documents, " in said
    assert "fit: plain pads " in said
    assert "fit: best pads " in said


def test_a_missing_tokenizer_is_named(corpus, tmp_path, capsys):
    assert cli.run_command(["init", str(corpus), "--tokenizer", str(tmp_path / "no.json")]) == 2
    assert "no.json: No such file or directory" in capsys.readouterr().err


def test_check_prints_the_hash_that_the_configuration_lacks(corpus, tmp_path, capsys):
    described = save(tmp_path)
    path = tmp_path / "text.yaml"
    path.write_text(
        f"version: 1\ncache: {{dir: {tmp_path}/cache, limit: 1GiB}}\ndatasets:\n  train:\n"
        f"    source: {{url: 'file://{corpus}', format: jsonl}}\n"
        "    transform:\n      - tokenize: {tokenizer: tokenizer.json}\n"
    )
    assert cli.run_command(["check", str(path)]) == 2
    said = capsys.readouterr().err
    assert f"{path}:7:" in said
    assert f"add sha256: {described['sha256']}" in said


def test_proposal_takes_a_text_for_the_documents_and_no_other_column(tmp_path, capsys):
    folder = tmp_path / "stories"
    folder.mkdir()
    rows = [
        {"id": n, "meta": {"n": None if n % 2 else 1}, "story": "the cat sat"} for n in range(50)
    ]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = tmp_path / "text.yaml"
    options = ["--tokenizer", save(tmp_path)["tokenizer"], "--cache", str(tmp_path / "cache")]
    assert cli.run_command(["init", str(folder), *options, "--out", str(path)]) == 0
    train = load(path).datasets["train"]
    assert train.source.columns == ("story",)
    assert not train.source.features


def test_check_of_a_pack_without_tokens_says_why_no_record_is_left(corpus, tmp_path, capsys):
    path = tmp_path / "text.yaml"
    path.write_text(
        f"version: 1\ncache: {{dir: {tmp_path}/cache, limit: 1GiB}}\ndatasets:\n  train:\n"
        f"    source: {{url: 'file://{corpus}', format: jsonl}}\n"
        "    transform: [{pack: {window: 64}}]\n"
    )
    assert cli.run_command(["check", str(path), "--sources"]) == 1
    assert "pack: the record has no feature 'tokens'" in capsys.readouterr().err
