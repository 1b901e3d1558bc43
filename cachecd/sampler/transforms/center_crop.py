"""Ready-made step `center_crop`: cuts the middle out of pictures, at a fixed size."""

from __future__ import annotations

from typing import Any

from cachecd.sampler.transforms.pictures import pictures


def center_crop(
    record: dict[str, Any], size: tuple[int, int], features: list[str] | None = None
) -> dict[str, Any]:
    """Cuts the middle, `size` (height, width), out of the named pictures. Default: `image` and `label_map`.

    ValueError for a smaller picture. If a margin is odd, the extra pixel is removed at the bottom or right.
    """
    height, width = size
    cropped = dict(record)
    for name, value in pictures(record, "center_crop", features):
        if value.shape[0] < height or value.shape[1] < width:
            raise ValueError(
                f"{name!r} has {value.shape[0]} x {value.shape[1]} pixels, expected at least "
                f"{height} x {width}: put resize before center_crop, or crop less"
            )
        top, left = (value.shape[0] - height) // 2, (value.shape[1] - width) // 2
        cropped[name] = value[top : top + height, left : left + width]
    return cropped
