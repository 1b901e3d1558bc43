"""What lies in the store: objects whose bytes follow from their key, so that any reader can judge them."""

from __future__ import annotations

import functools
import hashlib
import random

CLASSES = 10


def keys(count: int) -> list[str]:
    """`count` keys, of ten classes by turns."""
    return [f"class-{number % CLASSES}/{number:06d}.bin" for number in range(count)]


@functools.cache  # a job reads each some hundred times
def content(key: str) -> bytes:
    """The object of this key: 1 to 20 kB."""
    chance = random.Random(hashlib.sha256(key.encode()).digest())
    return chance.randbytes(chance.randint(1_000, 20_000))


def fault_of(key: bytes, label: int, payload: bytes) -> str:
    """What is wrong with a record that was delivered; "" if it is its object, byte for byte."""
    name = key.decode(errors="replace")
    if not name.startswith("class-"):
        return f"a record of no object: {name[:60]!r}"
    if label != int(name[len("class-")]):
        return f"{name} has label {label}"
    return "" if payload == content(name) else f"{name} has other bytes than its object"
