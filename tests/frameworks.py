"""The frameworks. A test imports them at their first use, so that collecting tests imports none.

Together they take 19 s of CPU in each of pytest's processes.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any


class Lazy:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest looks whether it is a test
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)


if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
    import tensorflow as tf
    import torch
else:
    jax, jnp, tf, torch = map(Lazy, ("jax", "jax.numpy", "tensorflow", "torch"))

__all__ = ["Lazy", "jax", "jnp", "tf", "torch"]
