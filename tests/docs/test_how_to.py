"""The programs of the how-to pages run over small data: one of them, and with CACHECD_LONG=1 all."""

from __future__ import annotations

import gzip
import io
import json
import wave

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from tests import small_tokenizer
from tests.docs.shown import blocks, runner
from tests.frameworks import torch


@pytest.fixture
def bucket(tmp_path):
    (tmp_path / "bucket").mkdir()
    return tmp_path / "bucket"


@pytest.fixture
def run(tmp_path, monkeypatch):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield runner(tmp_path, monkeypatch)
    torch.set_num_threads(threads)


def test_a_corpus_of_json_lines_trains_a_small_language_model(run, bucket, tmp_path):
    (bucket / "corpus").mkdir()
    for number in range(6):
        texts = [f"{n}: the cat sat on the mat. a dog and the cat. " * 20 for n in range(40)]
        lines = "".join(json.dumps({"text": text, "id": n}) + "\n" for n, text in enumerate(texts))
        (bucket / "corpus" / f"{number}.json.gz").write_bytes(gzip.compress(lines.encode()))
    described = small_tokenizer.save(tmp_path)
    changes = {
        "50_304, 256, 1024": f"{small_tokenizer.SIZE}, 32, 64", "(layer, 4,": "(layer, 1,",
        "lr=3e-4": "lr=3e-3",
        "10_000_000_000": "100_000", "optimizer = torch": "losses = []\noptimizer = torch",
        "optimizer.step()": "optimizer.step(); losses.append(loss.item())",
    }  # fmt: skip
    yaml = {
        "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08": described["sha256"],
        "<|endoftext|>": small_tokenizer.END, "window: 1025, stride: 1024": "window: 65, stride: 64",
    }  # fmt: skip
    scope = run("docs/text.md", 0, 0, changes, yaml)
    assert scope["inputs"].shape == scope["targets"].shape == (8, 64)
    assert scope["inputs"].max() < small_tokenizer.SIZE
    assert scope["losses"][-1] < scope["losses"][0] / 2, "it learns"


def test_arrays_of_bytes_are_tokens_for_pack():
    scope: dict = {}
    exec(blocks("docs/text.md", "python")[1], scope)
    assert scope["to_tokens"]({"text": b"ab"})["tokens"].tolist() == [97, 98]


def test_tokens_of_replies_are_marked(monkeypatch, tmp_path):
    small_tokenizer.save(tmp_path)
    monkeypatch.chdir(tmp_path)
    scope: dict = {}
    exec(blocks("docs/text.md", "python")[3], scope)
    record = {"messages.role": [b"user", b"assistant"], "messages.content": [b"a dog", b"a cat"]}
    made = scope["to_chat"](record)
    assert len(made["tokens"]) == len(made["is_reply"])
    assert made["is_reply"] == sorted(made["is_reply"])
    assert 0 < sum(made["is_reply"]) < len(made["is_reply"])


def test_sound_and_transcripts_come_as_one_padded_batch(run, bucket):
    for number in range(8):
        for folder, suffix in (("audio", "flac"), ("text", "txt")):
            path = bucket / "speech" / folder / f"s{number}" / f"{number}.{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(
                sound(800 + number) if folder == "audio" else f"number {number}".encode()
            )
    changes = {'"train", 30': '"train", 1', "SECONDS = 16": "SECONDS = 1", "torch(16": "torch(2"}
    scope = run("docs/speech.md", 0, 0, changes)
    assert scope["audio"].shape == (2, 16_000)
    assert all(800 <= length < 808 for length in scope["samples"])
    assert scope["texts"][0].startswith("number ")


def sound(samples: int) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((1, 2, 16_000, samples, "NONE", ""))
        writer.writeframes(np.zeros(samples, "<i2").tobytes())
    return file.getvalue()


@pytest.mark.long
def test_columns_of_a_table_train_a_model(run, bucket):
    (bucket / "clicks").mkdir()
    rows = np.arange(64)
    table = pa.table(
        {
            "age": rows, "price": rows / 7, "country": ["de", "fr", "se", "de"] * 16,
            "clicked": rows % 2, "unused": rows,
        }
    )  # fmt: skip
    pyarrow.parquet.write_table(table, bucket / "clicks" / "a.parquet", row_group_size=4)
    changes = {'"train", 5': '"train", 1', "torch(256": "torch(8"}
    scope = run("docs/tabular.md", 0, 0, changes)
    assert scope["batch"].keys() == {"age", "price", "country", "clicked"}
    assert np.isfinite(scope["loss"].item())
