"""Reads the file sets of a cachecd daemon, and any TFRecord files, without the GIL.

Batches are arrays of NumPy, PyTorch, TensorFlow or JAX.

    from cachecd_client import connect, FileSet

Importing this package imports only its errors. The first use of any other name imports that name's modules,
and the first loader for a framework imports the framework.
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
    UnknownKeyError,
    WorldError,
)

if TYPE_CHECKING:
    from cachecd_client.files.file_set import FileSet
    from cachecd_client.loader.columns import Bytes, Ragged, RaggedBytes
    from cachecd_client.loader.image import Image
    from cachecd_client.loader.loader import Loader
    from cachecd_client.runs.epoch import Epoch
    from cachecd_client.runs.mixture import Mixture
    from cachecd_client.runs.run_loader import RunLoader
    from cachecd_client.schema import Feature, Schema
    from cachecd_client.session.cache import Cache, connect

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
    "RunLoader",
    "Schema",
    "SchemaError",
    "SplitChangedError",
    "UnknownDatasetError",
    "UnknownKeyError",
    "WorldError",
    "connect",
]

_HOME = {
    "files.file_set": "FileSet",
    "loader.columns": "Bytes Ragged RaggedBytes",
    "loader.image": "Image",
    "loader.loader": "Loader",
    "runs.epoch": "Epoch",
    "runs.mixture": "Mixture",
    "runs.run_loader": "RunLoader",
    "schema": "Feature Schema",
    "session.cache": "Cache connect",
}


def __getattr__(name: str) -> Any:
    for home, names in _HOME.items():
        if name in names.split():
            value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
