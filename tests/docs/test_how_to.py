"""The programs of the how-to pages run over small data: one of them, and with CACHECD_LONG=1 all."""

from __future__ import annotations

import io
import wave

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from cachecd.sampler.encoding import infer
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


def test_documents_become_lists_whose_lengths_differ():
    scope: dict = {}
    exec(blocks("docs/text.md", "python")[1], scope)
    records = [scope["to_tokens"]({"text": text}) for text in (b"ab", b"c" * 3000)]
    assert [len(record["tokens"]) for record in records] == [2, 2048]
    assert infer(records[0])["tokens"].shape is None


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
def test_windows_of_tokens_train_a_language_model(run, bucket):
    (bucket / "tokens").mkdir()
    for number in range(8):
        np.save(bucket / "tokens" / f"{number}.npy", np.arange(8192, dtype=np.uint16) % 1000)
    changes = {"50_304": "1_000", "10_000_000": "16", "torch(8": "torch(4"}
    scope = run("docs/text.md", 0, 0, changes)
    assert scope["inputs"].shape == scope["targets"].shape == (4, 1024)
    assert torch.equal(scope["inputs"][:, 1:], scope["targets"][:, :-1])
    assert np.isfinite(scope["loss"].item())


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
