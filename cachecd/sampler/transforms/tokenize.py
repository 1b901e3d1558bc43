"""Ready-made step `tokenize`: text -> the numbers of its tokens, by a function of the user's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cachecd.sampler.transforms.decode_image import encoded


class Tokenize:
    """Replaces `feature`, UTF-8 text, by `into`: what `encode(text: str)` makes of it, numbers in a list
    or an array: a ragged feature, int64.

    UnicodeDecodeError for what is no text; TypeError for what are no whole numbers. Text without a
    token is an empty list, which cannot be the first record: the schema would not know of what.
    """

    def __init__(self, encode: Callable[[str], Any], feature: str, into: str) -> None:
        self._encode, self._feature, self._into = encode, feature, into

    def __call__(self, record: Mapping[str, Any]) -> dict[str, Any]:
        text = encoded(record, self._feature)
        tokens = np.asarray(self._encode(text if isinstance(text, str) else bytes(text).decode()))
        if tokens.ndim != 1 or (tokens.size and not np.issubdtype(tokens.dtype, np.integer)):
            raise TypeError(
                f"expected a list of whole numbers, found {tokens.dtype} {list(tokens.shape)}"
            )
        rest = {name: value for name, value in record.items() if name != self._feature}
        return {**rest, self._into: tokens.astype(np.int64).tolist()}
