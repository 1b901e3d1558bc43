"""Ready-made step `tokenize`: turns text into the token numbers of a Hugging Face tokenizer."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# A process that forks after the library has made threads would hang. Other workers use the other cores.
os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer

from cachecd.config import SourceConfig
from cachecd.errors import ConfigError, RecordError, UnitError
from cachecd.quantities import approximate_size
from cachecd.sampler.draft import TokenShapes
from cachecd.sampler.meter import METER
from cachecd.sampler.transforms import Item, Record, named
from cachecd.sampler.usercode import Guest, blame
from cachecd.sampler.view import opened_folder

# Bytes of text in one call. While the call lasts, each token takes 400 bytes.
_CALL = 1 << 20
LONGEST = 8 << 20
"""Bytes of the longest document: its tokens may take a GB while it is tokenized."""


class Tokenize:
    """Replaces `feature`, text, with `into`: uint16 [n], or uint32 [n] if an id is 65,536 or more.

    Applies the tokenizer's normalizer, pre-tokenizer and model, but not its truncation, padding and
    post-processor. Text that spells a special token is text; if the model makes that token of it, the
    record is refused. `prepend` and `append` are single tokens. With `max_tokens`, the end of a longer text
    is cut off; `prepend` and `append` count.

    ConfigError if the file differs from `sha256`, is no tokenizer, or lacks one of the two tokens.
    """

    def __init__(
        self,
        source: SourceConfig,
        tokenizer: str,
        sha256: str,
        feature: str,
        into: str,
        append: str | None,
        prepend: str | None,
        max_tokens: int | None,
    ) -> None:
        self._feature, self._into = feature, into
        content = _read(source, tokenizer)
        if (actual := hashlib.sha256(content).hexdigest()) != sha256:
            raise ConfigError(
                f"tokenize: {tokenizer} has sha256 {actual}, expected {sha256}: restore the file, or "
                "change `sha256`, which makes another generation"
            )
        try:
            self._tokenizer = Tokenizer.from_buffer(content)
        except Exception as error:
            raise ConfigError(f"tokenize: {tokenizer} is no tokenizer.json: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        ids = self._tokenizer.get_vocab(with_added_tokens=True)
        for name, token in (("append", append), ("prepend", prepend)):
            if token is not None and token not in ids:
                raise ConfigError(f"tokenize: {tokenizer} has no token {token!r} ({name})")
        largest = max(ids.values(), default=0)
        self._dtype = np.dtype(np.uint16 if largest < 1 << 16 else np.uint32)
        self._special = np.zeros(largest + 1, np.bool_)
        added = self._tokenizer.get_added_tokens_decoder()
        self._special[[number for number, each in added.items() if each.special]] = True
        model = json.loads(content)["model"]
        if (unknown := model.get("unk_id", ids.get(model.get("unk_token")))) is not None:
            self._special[unknown] = False  # it stands for text
        self._first = np.array([ids[prepend]] if prepend else [], self._dtype)
        self._last = np.array([ids[append]] if append else [], self._dtype)
        self._most = None if max_tokens is None else max_tokens - len(self._first) - len(self._last)
        if self._most is not None and self._most < 0:
            raise ConfigError(
                f"tokenize: found max_tokens: {max_tokens}, which has no room for prepend and append"
            )

    async def over(self, items: AsyncIterator[Item]) -> AsyncGenerator[Item, None]:
        batch: list[Item] = []
        texts: list[str] = []
        size = 0
        async for item in items:
            if not isinstance(item, RecordError):
                try:
                    text, length = self._text(item)
                except RecordError as error:
                    item = named(error, item)
                else:
                    if texts and size + length > _CALL:
                        for result in await self._called(batch, texts):
                            yield result
                        batch, texts, size = [], [], 0
                    texts.append(text)
                    size += length
            batch.append(item)
        for result in await self._called(batch, texts):
            yield result

    async def _called(self, batch: list[Item], texts: list[str]) -> list[Item]:
        """Returns the results of a batch of items. `texts`: the texts of its records, in order."""
        made = await METER.off_loop("tokenize", partial(self._tokens, texts), len(texts))
        tokens = iter(made)
        return [
            item if isinstance(item, RecordError) else self._record(item, next(tokens))
            for item in batch
        ]

    def _record(self, record: Record, ids: NDArray[Any]) -> Item:
        if (found := ids[self._special[ids]]).size:
            token = self._tokenizer.id_to_token(int(found[0]))
            why = f"tokenize: the text spells the special token {token!r}, and the model makes it of it"
            return named(RecordError(why), record)
        tokens = np.concatenate((self._first, ids[: self._most], self._last))
        return {n: v for n, v in record.items() if n != self._feature} | {self._into: tokens}

    def tokens_after(self, before: TokenShapes) -> TokenShapes:
        return {**before, self._into: None}

    def _text(self, record: Any) -> tuple[str, int]:
        """Returns the text of a record, and its bytes. RecordError."""
        if self._into in record and self._into != self._feature:
            raise RecordError(f"tokenize: the record has {self._into!r} already: set `into`")
        value = record.get(self._feature)
        if isinstance(value, str):
            value = value.encode("utf-8", "surrogatepass")
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise RecordError(
                f"tokenize: the record has no text in {self._feature!r}"
                if value is None
                else f"tokenize: {self._feature!r} is {type(value).__name__}, expected text"
            )
        if len(value) > LONGEST:
            raise RecordError(
                f"tokenize: {self._feature!r} has {approximate_size(len(value))}, expected at most "
                f"{approximate_size(LONGEST)}"
            )
        try:
            return bytes(value).decode("utf-8"), len(value)
        except UnicodeDecodeError as error:
            raise RecordError(f"tokenize: {self._feature!r} is not UTF-8: {error}") from error

    def _tokens(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        Guest.mark.enter("tokenize")
        try:
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
            return [np.array(each.ids, self._dtype) for each in encodings]
        except BaseException as error:  # a panic of the library is no Exception
            raise UnitError(f"tokenize: {blame(error)}") from error
        finally:
            Guest.mark.leave()


def _read(source: SourceConfig, name: str) -> bytes:
    """Returns the content of the file at a path or a URL. ConfigError, SourceUnreachableError."""
    if "://" not in name:
        try:
            return Path(name).read_bytes()
        except OSError as error:
            raise ConfigError(
                f"tokenize: {name} cannot be read: {error.strerror or error}"
            ) from error
    with opened_folder(source, name) as (view, key):
        try:
            return view.get(key)
        except UnitError as error:
            raise ConfigError(f"tokenize: {name} cannot be read: {error}") from error
