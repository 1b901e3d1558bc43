"""Arrays as torch tensors over the same memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.dlpack import from_dlpack as _from_dlpack

from cachecd_client.errors import CallerError
from cachecd_client.handover import Wrap, columns, is_dense
from cachecd_client.schema import Feature

# What the public function calls for a capsule, without its Python around it, of which a trainer whose
# step has taken the processor's caches pays for every line.
from_dlpack = getattr(torch._C, "_from_dlpack", _from_dlpack)


def tensor(array: NDArray[Any], bfloat16: bool = False, device: Any = None) -> torch.Tensor:
    """`array` as a tensor over its memory, or a copy of it if `device` is not the CPU.

    `bfloat16`: its uint16 elements are bfloat16.
    """
    if bfloat16:
        shared = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    else:
        shared = torch.from_numpy(array)
    return shared if device is None else shared.to(device, non_blocking=True)


class Torch:
    """Dense features as tensors on `device`; others as columns, which know `to_torch`.

    A device that there is not is a CallerError here, and not in the middle of a pass.
    """

    finish = None

    def __init__(self, device: Any = None) -> None:
        try:
            self._device = None if device is None else torch.device(device)
            torch.empty(0, device=self._device)
        except (AssertionError, RuntimeError, TypeError) as error:  # the first: built without CUDA
            raise CallerError(f"device={device!r}: {error}") from error
        self.copies = self._device is not None and self._device.type != "cpu"

    def wrap(self, feature: Feature) -> Wrap:
        if not is_dense(feature):
            return columns(feature)
        device = self._device
        bfloat16 = feature.dtype == "bfloat16"
        if device is None and not bfloat16:
            return Wrap(from_dlpack, dlpack=True)  # no Python of ours for each batch

        def place(capsule: Any) -> torch.Tensor:
            shared = from_dlpack(capsule)
            if bfloat16:
                shared = shared.view(torch.bfloat16)
            return shared if device is None else shared.to(device, non_blocking=True)

        return Wrap(place, dlpack=True)
