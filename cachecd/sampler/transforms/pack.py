"""Ready-made step `pack`: packs documents of tokens into windows of equal length.

Plain packing concatenates the documents of a group in order, and cuts windows out. Best fit never cuts a
document that fits into a window: the longest document comes first, and each goes into the window with the
least room that suffices (Ding et al., Fewer Truncations Improve Language Modeling, 2024).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cachecd.errors import RecordError
from cachecd.sampler.draft import TokenShapes
from cachecd.sampler.meter import METER
from cachecd.sampler.transforms import Item
from cachecd_client.schema import MASK

Tokens = NDArray[Any]


class Pack:
    """Packs the feature `feature`, and drops all other features. Windows begin `stride` tokens apart.

    `remainder`: "drop" drops the last tokens of a group that do not fill a window, and reports them as a
    skipped record. "pad" fills the last window with zeros. Then, and with `fit` "best", each record has
    `mask`: bool [window], False for padding. `segments` adds `segments`: uint32 [window], the number of the
    document in the window, from 1; 0 for padding.
    """

    def __init__(
        self, feature: str, window: int, stride: int, remainder: str, segments: bool, fit: str
    ) -> None:
        self._feature, self._window, self._stride = feature, window, stride
        self._is_padded, self._is_best = remainder == "pad", fit == "best"
        self._has_segments = segments

    async def over(self, items: AsyncIterator[Item]) -> AsyncGenerator[Item, None]:
        errors: list[RecordError] = []
        documents: list[Tokens] = []  # for best fit
        packing = Packing(self._window, self._stride)
        dtype: np.dtype[Any] | None = None
        async for item in items:
            tokens = self._tokens(item, dtype)
            if isinstance(tokens, RecordError):
                errors.append(tokens)
                continue
            dtype = tokens.dtype if tokens.size else dtype
            if self._is_best and tokens.size:
                documents.append(tokens)
            elif tokens.size:
                with METER.stage("pack"):
                    filled = [self._record(window) for window in packing.add(tokens)]
                for record in filled:
                    yield record
        windows = packing.rest()
        if documents:
            fitting = partial(best_fit, documents, self._window, self._stride)
            windows = await METER.off_loop("pack", fitting, len(documents))
        for window in windows:
            record = self._record(window)
            if isinstance(record, RecordError):
                errors.append(record)  # the last one, because others explain more
            else:
                yield record
        for error in errors:
            yield error

    def tokens_after(self, before: TokenShapes) -> TokenShapes:
        return {self._feature: (self._window,)}

    def _tokens(self, item: Item, dtype: np.dtype[Any] | None) -> Tokens | RecordError:
        """Returns the tokens of a record. `dtype`: the dtype of the documents before this record."""
        if isinstance(item, RecordError):
            return item
        if self._feature not in item:
            return RecordError(f"pack: the record has no feature {self._feature!r}")
        tokens = np.asarray(item[self._feature])
        if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
            return RecordError(
                f"pack: {self._feature!r} has {tokens.dtype.name} {list(tokens.shape)}, expected a list of "
                "whole numbers"
            )
        if tokens.size and dtype not in (None, tokens.dtype):
            return RecordError(
                f"pack: {self._feature!r} has {tokens.dtype.name}, but the documents before it have {dtype}"
            )
        return tokens

    def _record(self, window: Window) -> Item:
        missing = self._window - window.tokens.size
        if missing and not self._is_padded:
            return RecordError(
                f"pack: the last window of a group has {window.tokens.size} tokens, expected "
                f"{self._window} (remainder: drop)"
            )
        record = {self._feature: np.pad(window.tokens, (0, missing))}
        if self._is_padded:
            record[MASK] = np.arange(self._window) < window.tokens.size
        if self._has_segments:
            record["segments"] = np.pad(window.documents, (0, missing))
        return record


class Window(NamedTuple):
    """At most a window of tokens. `documents`: the number of each token's document in the window, from
    1."""

    tokens: Tokens
    documents: NDArray[np.uint32]


class Packing:
    """Cuts windows out of concatenated documents, as these come. No document is empty."""

    def __init__(self, window: int, stride: int) -> None:
        self._window, self._stride = window, stride
        self._left = np.zeros(0, np.uint8)  # the tokens from the next window on
        self._documents = np.zeros(0, np.uint32)  # the numbers of their documents
        self._count = 0
        self._covered = 0  # how many of the tokens are in the window before

    def add(self, document: Tokens) -> Iterator[Window]:
        """Yields the windows that the document fills."""
        self._count += 1
        numbers = np.full(document.size, self._count, np.uint32)
        tokens = np.concatenate((self._left, document)) if self._left.size else document
        numbers = np.concatenate((self._documents, numbers))
        at = 0
        while at + self._window <= tokens.size:
            yield self._cut(tokens[at : at + self._window], numbers[at : at + self._window])
            at += self._stride
            self._covered = self._window - self._stride
        self._left, self._documents = tokens[at:].copy(), numbers[at:].copy()

    def rest(self) -> Iterable[Window]:
        """Returns the last window, which is shorter, if it has a token that no window before it has."""
        is_new = self._left.size > self._covered
        return (self._cut(self._left, self._documents),) if is_new else ()

    @staticmethod
    def _cut(tokens: Tokens, numbers: NDArray[np.uint32]) -> Window:
        return Window(tokens, numbers - numbers[0] + np.uint32(1))


def plain(documents: Iterable[Tokens], window: int, stride: int) -> Iterator[Window]:
    """Yields the windows of the concatenated documents."""
    packing = Packing(window, stride)
    for document in documents:
        yield from packing.add(document)
    yield from packing.rest()


def best_fit(documents: Sequence[Tokens], window: int, stride: int) -> list[Window]:
    """Returns windows of whole documents. Only documents that are longer than a window are cut, as `plain`
    cuts them. No document is empty."""
    pieces: list[Tokens] = []
    for document in documents:
        if document.size <= window:
            pieces.append(document)
        else:
            pieces += [part.tokens for part in plain((document,), window, stride)]
    pieces.sort(key=len, reverse=True)  # stable
    contents: list[list[Tokens]] = []
    free: list[tuple[int, int]] = []  # sorted: free positions of a window, and its number
    for piece in pieces:
        place = bisect_left(free, (piece.size, 0))
        if place == len(free):
            number, room = len(contents), window
            contents.append([])
        else:
            room, number = free.pop(place)
        contents[number].append(piece)
        if room > piece.size:
            insort(free, (room - piece.size, number))
    windows = []
    for parts in contents:
        numbers = np.arange(1, len(parts) + 1, dtype=np.uint32)
        documents_of = np.repeat(numbers, [part.size for part in parts])
        windows.append(Window(np.concatenate(parts), documents_of))
    return windows


def survey(lengths: Sequence[int], window: int, stride: int) -> dict[str, tuple[float, float]]:
    """Returns for "plain" and "best" the share of padding in the positions of all windows, with `remainder`
    "pad", and the share of the documents that no window holds whole. At least one length is above 0."""
    documents = [np.zeros(length, np.uint8) for length in lengths if length]
    ends = np.cumsum([document.size for document in documents])
    begins = ends - [document.size for document in documents]
    is_cut = {
        "plain": ends > begins // stride * stride + window,
        "best": ends - begins > window,
    }
    shares = {}
    for name, pack in (("plain", plain), ("best", best_fit)):
        sizes = [tokens.size for tokens, _ in pack(documents, window, stride)]
        padding = 1 - sum(sizes) / (len(sizes) * window)
        shares[name] = padding, float(np.mean(is_cut[name]))
    return shares
