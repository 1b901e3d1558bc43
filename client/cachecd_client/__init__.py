"""Reads the file sets that cachecd keeps, and any TFRecord files, without the GIL.

Batches come as NumPy's, PyTorch's, TensorFlow's or JAX's arrays.

    from cachecd_client import connect, FileSet

Importing this package loads nothing else: each name brings in what it needs when it is first used,
and no framework before a loader for it is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from cachecd_client.errors import (
    AcquireTimeoutError,
    CachecdError,
    CallerError,
    CorruptError,
    CorruptRecordError,
    CorruptSidecarError,
    DaemonUnreachableError,
    LeaseLostError,
    OtherNodeError,
    ProtocolVersionError,
    ReplicasDifferError,
    RequestError,
    SchemaError,
    SplitChangedError,
    UnknownDatasetError,
    WorldError,
)

if TYPE_CHECKING:
    from cachecd_client.columns import Bytes, Ragged, RaggedBytes
    from cachecd_client.epoch import Epoch
    from cachecd_client.fileset import FileSet
    from cachecd_client.image import Image
    from cachecd_client.loader import Loader
    from cachecd_client.mixture import Mixture
    from cachecd_client.schema import Feature, Schema
    from cachecd_client.session import Cache, connect

__all__ = [
    "AcquireTimeoutError",
    "Bytes",
    "Cache",
    "CachecdError",
    "CallerError",
    "CorruptError",
    "CorruptRecordError",
    "CorruptSidecarError",
    "DaemonUnreachableError",
    "Epoch",
    "Feature",
    "FileSet",
    "Image",
    "LeaseLostError",
    "Loader",
    "Mixture",
    "OtherNodeError",
    "ProtocolVersionError",
    "Ragged",
    "RaggedBytes",
    "ReplicasDifferError",
    "RequestError",
    "Schema",
    "SchemaError",
    "SplitChangedError",
    "UnknownDatasetError",
    "WorldError",
    "connect",
]

_HOME = {
    "Bytes": "columns",
    "Cache": "session",
    "Epoch": "epoch",
    "Feature": "schema",
    "FileSet": "fileset",
    "Image": "image",
    "Loader": "loader",
    "Mixture": "mixture",
    "Ragged": "columns",
    "RaggedBytes": "columns",
    "Schema": "schema",
    "connect": "session",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
