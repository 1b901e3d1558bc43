"""Thrift's compact protocol, as far as a Parquet footer needs it: wanted fields of structs; others skipped.

What is wrong raises ValueError, or IndexError where the data ends too early. Nothing is allocated by what
a length says: elements of a list take a byte each at least, and as many must be there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_DEEPEST = 32

Parse = Callable[["Reader"], Any]


class Reader:
    """Reads `data` from `at` on."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self._at = at

    def number(self) -> int:
        """A signed integer of 16 to 64 bits."""
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def text(self) -> bytes:
        length = self._length()
        self._at += length
        return self._data[self._at - length : self._at]

    def list_of(self, parse: Parse) -> list[Any]:
        return [parse(self) for _ in range(self._begin_list()[0])]

    def struct(self, wanted: dict[int, tuple[int, Parse]]) -> dict[int, Any]:
        """The wanted fields that are there, by their numbers: `wanted` has their types and parsers."""
        data, field = self._data, 0
        found: dict[int, Any] = {}
        while True:
            head = data[self._at]
            self._at += 1
            if not head:
                return found
            field = field + (head >> 4) if head >> 4 else self.number()
            kind = head & 15
            about = wanted.get(field)
            if about is None:
                self._skip(kind, 0)
            elif about[0] != kind:
                raise ValueError(f"field {field} is of type {kind}, expected {about[0]}")
            else:
                found[field] = about[1](self)

    def _varint(self) -> int:
        data, at = self._data, self._at
        value = data[at]
        at += 1
        if value >= 0x80:
            value &= 0x7F
            for shift in range(7, 70, 7):
                byte = data[at]
                at += 1
                value |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
            else:
                raise ValueError("a number is longer than ten bytes")
        self._at = at
        return value

    def _length(self) -> int:
        length = self._varint()
        if length > len(self._data) - self._at:
            raise ValueError("a length exceeds what is there")
        return length

    def _begin_list(self) -> tuple[int, int]:
        head = self._data[self._at]
        self._at += 1
        length = head >> 4
        if length == 15:
            length = self._varint()
        if length > len(self._data) - self._at:
            raise ValueError("a list is longer than what is there")
        return length, head & 15

    def _skip(self, kind: int, depth: int) -> None:
        if depth > _DEEPEST:
            raise ValueError(f"it is nested deeper than {_DEEPEST}")
        match kind:
            case 1 | 2:  # the value is in the type
                pass
            case 3:
                self._at += 1
            case 4 | 5 | 6:
                self._varint()
            case 7:
                self._at += 8
            case 8:
                length = self._length()  # which moves on, too
                self._at += length
            case 9 | 10:
                length, inner = self._begin_list()
                for _ in range(length):
                    self._skip_element(inner, depth + 1)
            case 11:
                if length := self._length():
                    kinds = self._data[self._at]
                    self._at += 1
                    for _ in range(length):
                        self._skip_element(kinds >> 4, depth + 1)
                        self._skip_element(kinds & 15, depth + 1)
            case 12:
                data = self._data
                while head := data[self._at]:
                    self._at += 1
                    if not head >> 4:
                        self._varint()
                    self._skip(head & 15, depth + 1)
                self._at += 1
            case _:
                raise ValueError(f"there is no type {kind}")

    def _skip_element(self, kind: int, depth: int) -> None:
        if kind in (_TRUE, _FALSE):  # in a list it takes a byte
            self._at += 1
        else:
            self._skip(kind, depth)


def number(reader: Reader) -> int:
    return reader.number()


def text(reader: Reader) -> bytes:
    return reader.text()


def skipped(reader: Reader) -> bool:
    """A struct of which only matters that it is there."""
    reader.struct({})
    return True


I32 = (_I32, number)
I64 = (_I64, number)
TEXT = (_BINARY, text)


def struct(wanted: dict[int, tuple[int, Parse]]) -> tuple[int, Parse]:
    """The type and parser of a field that is a struct."""
    return _STRUCT, lambda reader: reader.struct(wanted)


def list_of(element: tuple[int, Parse]) -> tuple[int, Parse]:
    """The type and parser of a field that is a list."""
    return _LIST, lambda reader: reader.list_of(element[1])
