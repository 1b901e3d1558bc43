"""Finds the features of a record that the ready-made steps decode or resize."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_USUAL = ("image", "label_map")


def scaled(height: int, width: int, shorter: int) -> tuple[int, int]:
    """Returns (height, width) that give the shorter side `shorter` pixels, rounded as in torchvision."""
    if height <= width:
        return shorter, shorter * width // height
    return shorter * height // width, shorter


def pictures(
    record: dict[str, Any], step: str, features: list[str] | None
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yields (name, value) of the named features; default: `image` and `label_map`, if the record has them.
    TypeError if a value is neither uint8 [height, width, channels] nor integers [height, width]."""
    names = features or [name for name in _USUAL if name in record] or _USUAL[:1]
    for name in names:
        value = record.get(name)
        actual = "none" if value is None else type(value).__name__
        if isinstance(value, np.ndarray):
            is_image = value.ndim == 3 and value.dtype == np.uint8
            if is_image or (value.ndim == 2 and np.issubdtype(value.dtype, np.integer)):
                yield name, value
                continue
            actual = f"{value.dtype} {list(value.shape)}"
        raise TypeError(
            f"expected the feature {name!r}, uint8 [height, width, channels] or integers [height, "
            f"width], found {actual}: put decode_image or class_map before {step}"
        )


def encoded(record: Mapping[str, Any], feature: str) -> Any:
    """Returns the value of the feature to decode. KeyError lists the record's features."""
    if feature not in record:
        raise KeyError(f"no feature {feature!r} to decode; the record has {', '.join(record)}")
    return record[feature]
