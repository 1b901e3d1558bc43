"""The header of a .npy object: versions 1 to 3, in C order."""

from __future__ import annotations

import ast
from typing import Any

from cachecd.config.array import ArrayFile
from cachecd.errors import UnitError
from cachecd.sampler.sources.arrays import Layout, Read, layout_of, shown

# As NumPy bounds it: a header is parsed as Python literals, and a sound one has a hundred characters.
_LONGEST = 10_000
_FIRST_READ = 1024  # what it is tried to be read with
_MAGIC = b"\x93NUMPY"


async def npy_layout(file: ArrayFile, read: Read, size: int) -> tuple[Layout, int]:
    """Of a .npy object, from its header, and where row 0 begins. It has `size` bytes, or more."""
    head = bytes(await read(0, min(_FIRST_READ, size)))
    if head[:6] != _MAGIC or len(head) < 10:
        raise UnitError(f"not a .npy file: it begins with {head[:8]!r}, expected {_MAGIC!r}")
    version = head[6]
    if version not in (1, 2, 3):
        raise UnitError(f"a .npy file of version {version}, expected 1, 2 or 3")
    wide = 2 if version == 1 else 4
    length = int.from_bytes(head[8 : 8 + wide], "little")
    at = 8 + wide + length
    if length > _LONGEST:
        raise UnitError(f"its header has {length} bytes, expected at most {_LONGEST}")
    if at > size:
        raise UnitError(f"truncated: the object has {size} bytes, its header ends at {at}")
    if at > len(head):
        head = bytes(await read(0, at))
    found = _header(head[8 + wide : at].decode("utf-8" if version == 3 else "latin-1", "replace"))
    if found["fortran_order"] and isinstance(found["shape"], tuple) and len(found["shape"]) > 1:
        raise UnitError(
            "it is in Fortran order, so that a row lies all over the file; save it as "
            "numpy.ascontiguousarray(...)"
        )
    layout = layout_of(found["shape"], found["descr"], file)
    return layout, at


def _header(text: str) -> dict[str, Any]:
    try:
        found = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        found = None
    if not isinstance(found, dict) or found.keys() != {"descr", "fortran_order", "shape"}:
        raise UnitError(
            f"its header is {shown(text)}, expected {{'descr': ..., 'fortran_order': ..., 'shape': ...}}"
        )
    return found
