"""Arrays as torch tensors over the same memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cachecd_client.schema import Feature


def tensor(array: NDArray[Any], bfloat16: bool = False, device: Any = None) -> torch.Tensor:
    """`array` as a tensor over its memory, or a copy of it if `device` is not the CPU.

    `bfloat16`: its uint16 elements are bfloat16.
    """
    if bfloat16:
        shared = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    else:
        shared = torch.from_numpy(array)
    return shared if device is None else shared.to(device, non_blocking=True)


def converter(device: Any = None) -> Callable[[Feature | None, NDArray[Any]], torch.Tensor]:
    """What a Loader needs to deliver tensors on `device`.

    An unknown device fails here, and not in the middle of a pass.
    """
    place = None if device is None else torch.device(device)

    def convert(feature: Feature | None, dense: NDArray[Any]) -> torch.Tensor:
        return tensor(dense, feature is not None and feature.dtype == "bfloat16", place)

    return convert
