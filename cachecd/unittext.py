"""What a unit is called in an index, as bytes, and in the log. Pure; the format is in docs/formats.md."""

from __future__ import annotations

from cachecd.model import ObjectInfo

MARK = b"\xff"  # in no UTF-8


def name_of(unit: ObjectInfo) -> bytes:
    """What names a unit: its key and, unless that is 0, where in the object it begins."""
    if not unit.begin:
        return encoded(unit.key)
    if not 0 <= unit.begin < 1 << 63:
        raise ValueError(f"unit of {unit.key[:60]!r} from byte {unit.begin}, expected at least 0")
    return encoded(unit.key) + MARK + unit.begin.to_bytes(8)


def about_of(unit: ObjectInfo) -> bytes:
    """What else is known of it: the etag, and the label where a list of units gave one."""
    etag = encoded(unit.etag)
    return etag + MARK + encoded(unit.label) if unit.label else etag


def encoded(text: str) -> bytes:
    """UTF-8, but for names that are not Unicode and come as lone surrogates."""
    return text.encode("utf-8", "surrogatepass")


def decoded(text: bytes) -> str:
    return text.decode("utf-8", "surrogatepass")


def for_the_log(key: str) -> str:
    """The key, without the query of one that is a URL, which may be signed."""
    return key.partition("?")[0] if "://" in key else key


def most_bytes(text: str) -> int:
    """At least the encoded length, without encoding."""
    return len(text) if text.isascii() else 4 * len(text)
