"""Ready-made step `class_map`: turns the colors of a picture into class numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachecd.sampler.transforms.decode_image import decoded
from cachecd.sampler.transforms.pictures import encoded


class ClassMap:
    """Replaces `feature`, an image file or uint8 [height, width, 3], with `into`: the class number of each
    pixel, [height, width], uint8 if all numbers fit, else uint16.

    The class number is the index of the pixel's color in `colors`. Other colors get `other`; without
    `other`, ValueError with the color and the pixel. Image files must be lossless: JPEG changes colors.
    """

    def __init__(
        self,
        feature: str,
        into: str,
        colors: Sequence[tuple[str, Sequence[int]]],
        other: int | None,
    ) -> None:
        self._feature, self._into, self._other = feature, into, other
        packed = np.array([r << 16 | g << 8 | b for _, (r, g, b) in colors], np.int64)
        self._order = np.argsort(packed)
        self._colors = packed[self._order]
        most = max(len(colors) - 1, other or 0)
        self._dtype = np.uint8 if most <= 255 else np.uint16

    def __call__(self, record: Mapping[str, Any]) -> dict[str, Any]:
        pixels = self._pixels(encoded(record, self._feature))
        packed = pixels.astype(np.int64) @ np.array([1 << 16, 1 << 8, 1])
        places = np.searchsorted(self._colors, packed).clip(max=len(self._colors) - 1)
        unknown = self._colors[places] != packed
        numbers = self._order[places].astype(self._dtype)
        if unknown.any():
            if self._other is None:
                row, column = (int(at[0]) for at in np.nonzero(unknown))
                raise ValueError(
                    f"the color #{int(packed[row, column]):06x} at row {row}, column {column} belongs to "
                    "no class: add it to colors, or give the number of all other colors as `other`"
                )
            numbers[unknown] = self._other
        rest = {name: value for name, value in record.items() if name != self._feature}
        return {**rest, self._into: numbers}

    def _pixels(self, value: Any) -> NDArray[np.uint8]:
        if isinstance(value, np.ndarray):
            if value.dtype == np.uint8 and value.ndim == 3 and value.shape[2] == 3:
                return value
            raise TypeError(
                f"expected {self._feature!r} as an image file or uint8 [height, width, 3], found "
                f"{value.dtype} {list(value.shape)}"
            )
        return decoded(value, "RGB")
