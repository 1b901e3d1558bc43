"""Reads the members of a tar archive in sequence as the archive arrives.

Supports the dialects v7, ustar, pax and GNU: long names, prefixes, sizes above 8 GiB. Checks the checksum
of every header; tar has no checksum of contents. An archive must end with an end mark, one block of zeros
(the standard has two): an archive without it is incomplete. Only zeros may follow. Hard links are resolved.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from typing_extensions import Buffer

from cachecd.sampler.formats.packed import LARGEST
from cachecd.sampler.read_ahead import PIECE

_BLOCK = 512
_ZEROS = bytes(_BLOCK)
# Name, size, checksum, type, target of a link, magic, prefix.
_HEADER = struct.Struct("100s24x12s12x8sc100s6s82x155s12x")
_POSIX = b"ustar\0"  # GNU tar writes "ustar ", and has other fields in place of the prefix
_SPACES = sum(b" " * 8)  # the checksum counts its own field as spaces
_PADDING = 1 << 20  # bytes after the end mark that are checked at a time
_NAMES = 1 << 20  # most bytes of a long name or of a pax header

_REGULAR = b"07\0"
_HARD_LINK, _SYMBOLIC_LINK = b"1", b"2"
_WITHOUT_DATA = b"123456"  # links, devices, directories, pipes, even if the header has a size
_OTHERS = b"ADEIV"  # access lists, directory listings, attributes, inodes, volume names
_SPARSE = b"GNU.sparse."  # attributes with this prefix
_LONG_NAME, _LONG_LINK, _PAX, _GLOBAL = b"L", b"K", b"xX", b"g"
_ELSEWHERE = {b"S": "sparse", b"M": "continued from another volume"}


class TarError(ValueError):
    """The bytes are no tar archive, or the archive is damaged or of an unsupported kind."""


class MemberError(ValueError):
    """One member cannot be used; the members after it can."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of the archive. `begin`: the offset of the first header, which may be the header of a long
    name. `at`: the offset of the content. `target`: the member that a link names."""

    begin: int
    name: bytes
    size: int
    kind: bytes
    target: bytes
    at: int

    def __str__(self) -> str:
        return f"the member {shown(self.name)} at byte {self.begin}"


class Tar:
    """Reads the members of an archive. Every fault raises TarError or MemberError, with the offset.

    `chunks`: the archive's bytes from `offset` on. `end`: the length of the archive, if known. `reread`
    returns a range of the archive's bytes; without it, reading a hard link raises MemberError.
    """

    def __init__(
        self,
        chunks: AsyncIterator[Buffer],
        offset: int,
        end: int | None,
        reread: Callable[[int, int], Awaitable[Buffer]] | None = None,
    ) -> None:
        self._links = None if reread is None else _Links(reread)
        self._bytes = _Bytes(chunks, offset)
        self._end = end
        self._unread = 0  # bytes of the last member that have not been read
        self._place = ""  # names the last member in messages

    async def next(self) -> Member | None:
        """Returns the next file or link; None at the end mark. Skips directories and other members."""
        while True:
            self._require(self._unread)
            if self._end is None and self._unread > LARGEST:
                raise TarError(
                    f"{self._place} has {self._unread} bytes, expected at most {LARGEST} in a compressed "
                    "tar"
                )
            if await self._bytes.drop(self._unread):
                raise self._truncated(self._place)
            member = await self._headers()
            if member is None:
                return None
            self._place = str(member)
            self._unread = (
                0 if member.kind in _WITHOUT_DATA else member.size + -member.size % _BLOCK
            )
            # In v7 only the name shows that a member is a directory.
            is_link = member.kind in (_HARD_LINK, _SYMBOLIC_LINK)
            is_file = is_link or member.kind not in _WITHOUT_DATA + _OTHERS
            if is_file and not member.name.endswith(b"/"):
                return member

    async def read(self, member: Member) -> bytes:
        """Returns the content of the member that `next` returned last. Call it at most once per member."""
        if member.kind == _HARD_LINK:
            if self._links is None:
                raise MemberError(
                    f"{member} is a hard link, which is not followed in a compressed tar: write it with "
                    "`tar --hard-dereference`"
                )
            return await self._links.read(member)
        if member.kind == _SYMBOLIC_LINK:
            raise MemberError(
                f"{member} is a symbolic link, which is not followed: write the tar with `--dereference`"
            )
        if member.kind not in _REGULAR:
            kind = _ELSEWHERE.get(member.kind, f"of the unknown type {shown(member.kind)}")
            raise MemberError(f"{member} is {kind}, expected a regular file")
        if member.size > LARGEST:
            raise MemberError(f"{member} has {member.size} bytes, expected at most {LARGEST}")
        self._require(member.size)
        data = await self._bytes.take(member.size)
        if len(data) < member.size:
            raise self._truncated(self._place)
        self._unread -= member.size
        return data

    async def finish(self) -> None:
        """Call it after `next` returned None. TarError if anything but zeros follows the end mark."""
        end = self._bytes.offset - _BLOCK
        while block := await self._bytes.take(_PADDING):
            if block.strip(b"\0"):
                raise TarError(
                    f"the tar's end mark is at byte {end}, but more follows: expected one archive per "
                    "object"
                )
            if self._bytes.offset - end > LARGEST:
                raise TarError(
                    f"more than {LARGEST} bytes of zeros begin at byte {end}, the tar's end mark"
                )

    async def _headers(self) -> Member | None:
        """Reads all headers of the next member. Returns None at the end mark."""
        begin = self._bytes.offset
        long_name, long_target, attributes = b"", b"", dict[bytes, bytes]()
        while True:
            at = self._bytes.offset
            block = await self._bytes.take(_BLOCK)
            if block == _ZEROS and at == begin:
                return None
            if len(block) < _BLOCK or block == _ZEROS:
                raise self._truncated("" if at == begin else f"the headers at byte {begin}")
            name, size, checksum, kind, target, magic, prefix = _HEADER.unpack(block)
            if not _adds_up(block, checksum):
                raise TarError(f"no tar header at byte {at}: its checksum is wrong{_seems(block)}")
            length = _number(size)
            if length is None:
                raise TarError(f"no tar header at byte {at}: its size is {shown(size)}")
            if kind in _LONG_NAME + _LONG_LINK + _PAX + _GLOBAL:
                extension = await self._extension(length, at)
                if kind == _LONG_NAME:
                    long_name = extension.partition(b"\0")[0]
                elif kind == _LONG_LINK:
                    long_target = extension.partition(b"\0")[0]
                elif kind in _PAX:
                    attributes |= _attributes(extension, at)
                elif kind == _GLOBAL and _attributes(extension, at).keys() & {b"path", b"size"}:
                    raise TarError(
                        f"the global header at byte {at} sets the name or the size of all members, which "
                        "is not supported"
                    )
                continue
            name = name.partition(b"\0")[0]
            if magic == _POSIX and prefix[0]:
                name = prefix.partition(b"\0")[0] + b"/" + name
            if _SPARSE in attributes:
                kind = b"S"
            if text := attributes.get(b"size"):
                if not text.isdigit() or len(text) > 20:
                    raise TarError(f"the header at byte {begin} has the invalid size {shown(text)}")
                length = int(text)
            name = attributes.get(b"path") or long_name or name
            target = attributes.get(b"linkpath") or long_target or target.partition(b"\0")[0]
            return Member(begin, name, length, kind, target, self._bytes.offset)

    async def _extension(self, length: int, at: int) -> bytes:
        if length > _NAMES:
            raise TarError(
                f"the header at byte {at} has a name or attributes of {length} bytes, expected at most "
                f"{_NAMES}"
            )
        data = await self._bytes.take(length + -length % _BLOCK)
        if len(data) < length:
            raise self._truncated(f"the headers at byte {at}")
        return data[:length]

    def _require(self, count: int) -> None:
        """TarError if the object is too short for `count` more bytes, before these are fetched."""
        if self._end is not None and self._bytes.offset + count > self._end:
            raise self._truncated(self._place, self._end)

    def _truncated(self, within: str, at: int | None = None) -> TarError:
        at = self._bytes.offset if at is None else at
        where = f"within {within}" if within else "without its end mark, two blocks of zeros"
        return TarError(f"truncated: the tar ends at byte {at}, {where}")


class _Links:
    """Reads the targets of hard links. Finds them by reading the headers before the link again."""

    def __init__(self, reread: Callable[[int, int], Awaitable[Buffer]]) -> None:
        self._reread = reread
        self._read_to = 0
        self._tar = Tar(self._chunks(), 0, None)
        self._known: dict[bytes, Member] = {}

    async def read(self, link: Member) -> bytes:
        while self._read_to < link.begin and (member := await self._tar.next()) is not None:
            self._read_to = member.begin
            is_link = member.kind == _HARD_LINK
            known = self._known.get(_path(member.target), member) if is_link else member
            self._known[_path(member.name)] = known
        target = self._known.get(_path(link.target))
        if target is None or target.kind not in _REGULAR or target.size > LARGEST:
            raise MemberError(
                f"{link} is a hard link to {shown(link.target)}, expected the name of a file before it"
            )
        return bytes(await self._reread(target.at, target.at + target.size))

    async def _chunks(self) -> AsyncIterator[Buffer]:
        at = 0
        while True:
            yield await self._reread(at, at + PIECE)
            at += PIECE


def _path(name: bytes) -> bytes:
    return name.removeprefix(b"./")


class _Bytes:
    """Reads chunks as one stream. `offset`: the offset of the next byte."""

    def __init__(self, chunks: AsyncIterator[Buffer], offset: int) -> None:
        self._chunks = chunks
        self._view = memoryview(b"")
        self.offset = offset

    async def take(self, count: int) -> bytes:
        """Returns the next `count` bytes, or fewer at the end. Copies each byte once."""
        view = self._view
        if len(view) >= count:
            self._view = view[count:]
            self.offset += count
            return bytes(view[:count])
        parts, missing = [view], count - len(view)
        self._view = memoryview(b"")
        while missing and (chunk := await anext(self._chunks, None)) is not None:
            view = memoryview(chunk).cast("B")
            parts.append(view[:missing])
            self._view = view[missing:]
            missing -= len(parts[-1])
        self.offset += count - missing
        return b"".join(parts)

    async def drop(self, count: int) -> int:
        """Skips `count` bytes. Returns the number of bytes that are missing at the end."""
        while count > len(self._view):
            count -= len(self._view)
            self.offset += len(self._view)
            self._view = memoryview(b"")
            if (chunk := await anext(self._chunks, None)) is None:
                return count
            self._view = memoryview(chunk).cast("B")
        self._view = self._view[count:]
        self.offset += count
        return 0


def shown(name: bytes) -> str:
    """Returns a name from the archive for a message: short, with control characters escaped."""
    text = repr(name.decode("utf-8", "backslashreplace"))
    return text if len(text) <= 120 else f"{text[:100]}...{text[-17:]}"


def _adds_up(block: bytes, checksum: bytes) -> bool:
    stated = _number(checksum)
    unsigned = sum(block) - sum(checksum) + _SPACES
    if stated == unsigned:
        return True
    # Some old writers added signed bytes.
    high = sum(byte > 127 for byte in block[:148] + block[156:])
    return stated == unsigned - 256 * high


def _number(field: bytes) -> int | None:
    """Parses a number in a header: octal digits, or big-endian after a byte of 128 (GNU). None: invalid."""
    if field[0] == 128:
        return int.from_bytes(field[1:], "big")
    digits = field.partition(b"\0")[0].strip(b" ")
    if digits.strip(b"01234567"):
        return None
    return int(digits or b"0", 8)


def _attributes(data: bytes, at: int) -> dict[bytes, bytes]:
    """Returns the attributes path, linkpath and size of a pax header, and one GNU.sparse attribute if any.

    A record of the header is "LENGTH KEY=VALUE\\n". LENGTH counts the whole record.
    """
    attributes: dict[bytes, bytes] = {}
    begin = 0
    while begin < len(data):
        digits = data[begin : begin + 20].partition(b" ")[0]
        length = int(digits) if digits.isdigit() else 0
        key, equals, value = data[begin + len(digits) + 1 : begin + length].partition(b"=")
        if begin + length > len(data) or not equals or value[-1:] != b"\n":
            raise TarError(
                f"the pax header at byte {at} is damaged: {shown(data[begin : begin + 40])}"
            )
        if key.startswith(_SPARSE):
            key = _SPARSE
        # Other attributes are dropped: any number of headers may follow one another.
        if key in (b"path", b"linkpath", b"size", _SPARSE):
            attributes[key] = value[:-1]
        begin += length
    return attributes


_MAGIC = {
    b"\xfd7zXZ": "XZ",
    b"BZh": "bzip2",
    b"PK\x03\x04": "ZIP",
    b"\x89HDF": "HDF5",
    b"PAR1": "Parquet",
}


def _seems(block: bytes) -> str:
    for magic, kind in _MAGIC.items():
        if block.startswith(magic):
            return f" (this looks like {kind}; expected tar, tar.gz or tar.zst)"
    return ""
