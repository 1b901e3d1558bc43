"""Ready-made step `pack`: packs documents of tokens into windows of equal length.

Plain packing concatenates the documents of a group in order, and cuts windows out. Best fit never cuts a
document that fits into a window: the longest document comes first, and each goes into the window with the
least room that suffices (Ding et al., Fewer Truncations Improve Language Modeling, 2024).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
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
        self._is_padded, self._has_segments, self._is_best = (
            remainder == "pad",
            segments,
            fit == "best",
        )

    async def over(self, items: list[Item]) -> list[Item]:
        errors: list[Item] = []
        documents: list[Tokens] = []
        for item in items:
            tokens = self._tokens(item, documents)
            if isinstance(tokens, RecordError):
                errors.append(tokens)
            elif tokens.size:
                documents.append(tokens)
        windows = await METER.off_loop("pack", partial(self._windows, documents), len(documents))
        return [*windows, *errors]

    def tokens_after(self, before: TokenShapes) -> TokenShapes:
        return {self._feature: (self._window,)}

    def _tokens(self, item: Item, before: Sequence[Tokens]) -> Tokens | RecordError:
        if isinstance(item, RecordError):
            return item
        if self._feature not in item:
            return RecordError(f"pack: the record has no feature {self._feature!r}")
        tokens = np.asarray(item[self._feature])
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            return RecordError(
                f"pack: {self._feature!r} has {tokens.dtype.name} {list(tokens.shape)}, expected a list of "
                "whole numbers"
            )
        if before and tokens.dtype != before[0].dtype and tokens.size:
            return RecordError(
                f"pack: {self._feature!r} has {tokens.dtype.name}, but the documents before it have "
                f"{before[0].dtype.name}"
            )
        return tokens

    def _windows(self, documents: Sequence[Tokens]) -> list[Item]:
        pack = best_fit if self._is_best else plain
        windows: list[Item] = []
        for tokens, numbers in pack(documents, self._window, self._stride):
            missing = self._window - tokens.size
            if missing and not self._is_padded:
                windows.append(
                    RecordError(
                        f"pack: the last window of a group has {tokens.size} tokens, expected "
                        f"{self._window} (remainder: drop)"
                    )
                )
                continue
            record = {self._feature: np.pad(tokens, (0, missing))}
            if self._is_padded:
                record[MASK] = np.arange(self._window) < tokens.size
            if self._has_segments:
                record["segments"] = np.pad(numbers, (0, missing))
            windows.append(record)
        return windows


class Window(NamedTuple):
    """At most a window of tokens. `documents`: the number of each token's document in the window, from
    1."""

    tokens: Tokens
    documents: NDArray[np.uint32]


def plain(documents: Sequence[Tokens], window: int, stride: int) -> Iterator[Window]:
    """Yields the windows of the concatenated documents. Only the last one may be shorter, and it has at
    least one token that no window before it has. No document is empty."""
    if not documents:
        return
    tokens = np.concatenate(documents)
    lengths = [document.size for document in documents]
    numbers = np.repeat(np.arange(1, len(lengths) + 1, dtype=np.uint32), lengths)
    for begin in _begins(tokens.size, window, stride):
        part = numbers[begin : begin + window]
        yield Window(tokens[begin : begin + window], part - part[0] + np.uint32(1))


def best_fit(documents: Sequence[Tokens], window: int, stride: int) -> Iterator[Window]:
    """Yields windows of whole documents. Only documents that are longer than a window are cut, as `plain`
    cuts them. No document is empty."""
    pieces = [
        document[begin : begin + window]
        for document in documents
        for begin in _begins(document.size, window, stride)
    ]
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
    for parts in contents:
        numbers = np.arange(1, len(parts) + 1, dtype=np.uint32)
        yield Window(np.concatenate(parts), np.repeat(numbers, [part.size for part in parts]))


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


def _begins(length: int, window: int, stride: int) -> range:
    """Returns where windows begin, so that each token is in a window, and no window has only tokens of the
    window before it."""
    return range(0, max(0, length - window) + stride, stride)
