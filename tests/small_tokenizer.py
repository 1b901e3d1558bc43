"""A small real tokenizer, and what it makes of texts without cachecd."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

END = "<|end|>"
SIZE = 300  # of the vocabulary


@cache
def tokenizer() -> Tokenizer:
    """A byte-level BPE tokenizer, with all that `tokenize` must ignore."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE,
        special_tokens=[END, "<s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(["the cat sat on the mat", "a dog and the cat"] * 3, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", made.token_to_id("<s>"))]
    )
    made.enable_truncation(3)
    made.enable_padding(length=50)
    return made


def save(folder: Path) -> dict[str, str]:
    """Writes tokenizer.json; returns the keys of `tokenize` that name it."""
    path = folder / "tokenizer.json"
    tokenizer().save(str(path))
    return {"tokenizer": str(path), "sha256": digest(path)}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def plain(text: str) -> list[int]:
    """The model's tokens of the text, without all that `tokenize` leaves out."""
    other = Tokenizer.from_str(tokenizer().to_str())
    other.no_truncation()
    other.no_padding()
    other.encode_special_tokens = True
    ids: list[int] = other.encode(text, add_special_tokens=False).ids
    return ids


def windows(texts: Iterable[str], window: int, stride: int) -> list[NDArray[np.uint16]]:
    """The whole windows of the texts, each of which is followed by END."""
    end = tokenizer().token_to_id(END)
    tokens = np.array([token for text in texts for token in [*plain(text), end]], np.uint16)
    return [tokens[at : at + window] for at in range(0, len(tokens) - window + 1, stride)]
