"""Reads a tar archive as it arrives: its members one after the other, without a seek.

Supports the dialects v7, ustar, pax and GNU: long names, prefixes, sizes above 8 GiB. Checks the checksum
of every header; tar has no checksum of contents. An archive must end with its end mark (one block of zeros;
the standard has two) and nothing else: an archive without it was cut short. Hard links are resolved.
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
# Name, size, checksum, type, name of the target, magic and prefix.
_HEADER = struct.Struct("100s24x12s12x8sc100s6s82x155s12x")
_POSIX = b"ustar\0"  # GNU's is "ustar ", and has other things where the prefix is
_SPACES = sum(b" " * 8)  # the checksum is made with spaces in its own place
_PADDING = 1 << 20  # bytes behind the end mark that are looked at at a time
_NAMES = 1 << 20  # bytes of a long name, or of a pax header with its other attributes

_REGULAR = b"07\0"
_HARD_LINK, _SYMBOLIC_LINK = b"1", b"2"
_WITHOUT_DATA = b"123456"  # links, devices, directories, pipes, whatever their size says
_OTHERS = b"ADEIV"  # access lists, lists of a directory, attributes, inodes, a volume's name
_SPARSE = b"GNU.sparse."  # attributes with this prefix
_LONG_NAME, _LONG_LINK, _PAX, _GLOBAL = b"L", b"K", b"xX", b"g"
_ELSEWHERE = {b"S": "sparse", b"M": "continued from another volume"}


class TarError(ValueError):
    """The bytes are not a tar archive, or it is damaged, or of an unsupported kind."""


class MemberError(ValueError):
    """One member cannot be used; the members behind it can."""


@dataclass(frozen=True, slots=True)
class Member:
    """A file in the archive, or a hard link to the earlier member `target`. `begin`: the byte at which its
    headers begin, including a long name's. `at`: the byte at which its content begins."""

    begin: int
    name: bytes
    size: int
    kind: bytes
    target: bytes
    at: int

    def __str__(self) -> str:
        return f"the member {shown(self.name)} at byte {self.begin}"


class Tar:
    """The members of an archive. `end`: the byte at which it ends, if that is known. Offsets are in the
    archive. `reread` returns a range of the archive's bytes, which hard links need; None: it cannot.

    Every fault raises TarError with the offset, or MemberError.
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
        self._place = ""  # what the last member is called in messages

    async def next(self) -> Member | None:
        """Returns the next file or link; None at the end mark. Directories and other members are passed
        over."""
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
            # v7 marks its directories by their names alone.
            is_link = member.kind in (_HARD_LINK, _SYMBOLIC_LINK)
            is_file = is_link or member.kind not in _WITHOUT_DATA + _OTHERS
            if is_file and not member.name.endswith(b"/"):
                return member

    async def read(self, member: Member) -> bytes:
        """Returns the content of the member that `next` returned last. Call it once for each member."""
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
            raise MemberError(f"{member} is {kind}, expected a whole file")
        if member.size > LARGEST:
            raise MemberError(f"{member} has {member.size} bytes, expected at most {LARGEST}")
        self._require(member.size)
        data = await self._bytes.take(member.size)
        if len(data) < member.size:
            raise self._truncated(self._place)
        self._unread -= member.size
        return data

    async def finish(self) -> None:
        """Checks the end of the archive after `next` returned None. TarError if anything but zeros follows
        the end mark."""
        end = self._bytes.offset - _BLOCK
        while block := await self._bytes.take(_PADDING):
            if block.strip(b"\0"):
                raise TarError(
                    f"the tar's end mark is at byte {end}, but more follows: expected one archive an object"
                )
            if self._bytes.offset - end > LARGEST:
                raise TarError(f"the tar's end mark at byte {end} is followed by zeros without end")

    async def _headers(self) -> Member | None:
        """Returns the next member, from all its headers; None for the end mark."""
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
                    raise TarError(f"the header at byte {at} gives all members one name or size")
                continue
            name = name.partition(b"\0")[0]
            if magic == _POSIX and prefix[0]:
                name = prefix.partition(b"\0")[0] + b"/" + name
            if _SPARSE in attributes:
                kind = b"S"
            if text := attributes.get(b"size"):
                if not text.isdigit() or len(text) > 20:
                    raise TarError(f"the header at byte {begin} gives {shown(text)} as a size")
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
        """Raises at once if the object is too short, and not only after all its bytes were fetched."""
        if self._end is not None and self._bytes.offset + count > self._end:
            raise self._truncated(self._place, self._end)

    def _truncated(self, within: str, at: int | None = None) -> TarError:
        at = self._bytes.offset if at is None else at
        where = f"within {within}" if within else "without its end mark, two blocks of zeros"
        return TarError(f"truncated: the tar ends at byte {at}, {where}")


class _Links:
    """Reads what hard links name: earlier members. For that the headers are read once more, up to the
    link."""

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
        found = self._known.get(_path(link.target))
        if found is None or found.kind not in _REGULAR or found.size > LARGEST:
            raise MemberError(
                f"{link} is a hard link to {shown(link.target)}, expected the name of a file before it"
            )
        return bytes(await self._reread(found.at, found.at + found.size))

    async def _chunks(self) -> AsyncIterator[Buffer]:
        at = 0
        while True:
            yield await self._reread(at, at + PIECE)
            at += PIECE


def _path(name: bytes) -> bytes:
    return name.removeprefix(b"./")


class _Bytes:
    """Chunks as one stream of bytes. `offset`: the offset of the next byte."""

    def __init__(self, chunks: AsyncIterator[Buffer], offset: int) -> None:
        self._chunks = chunks
        self._view = memoryview(b"")
        self.offset = offset

    async def take(self, count: int) -> bytes:
        """Returns the next `count` bytes; fewer only at the end. Copies each byte once."""
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
        """Passes over `count` bytes. Returns how many of them are missing."""
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
    # Some old writers took bytes for signed.
    high = sum(byte > 127 for byte in block[:148] + block[156:])
    return stated == unsigned - 256 * high


def _number(field: bytes) -> int | None:
    """Parses a number of a header: octal digits, or big-endian after a byte of 128 (GNU). None if it is not
    a number."""
    if field[0] == 128:
        return int.from_bytes(field[1:], "big")
    digits = field.partition(b"\0")[0].strip(b" ")
    if digits.strip(b"01234567"):
        return None
    return int(digits or b"0", 8)


def _attributes(data: bytes, at: int) -> dict[bytes, bytes]:
    """What counts of a pax header: path, linkpath, size, and whether it has any GNU.sparse attribute.

    Its records are "LENGTH KEY=VALUE\\n", the length that of the whole record.
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
        if key in (
            b"path",
            b"linkpath",
            b"size",
            _SPARSE,
        ):  # one header may follow another without end
            attributes[key] = value[:-1]
        begin += length
    return attributes


_MAGIC = {
    b"\x28\xb5\x2f\xfd": "Zstandard",
    b"\xfd7zXZ": "XZ",
    b"BZh": "bzip2",
    b"PK\x03\x04": "ZIP",
    b"\x89HDF": "HDF5",
    b"PAR1": "Parquet",
}


def _seems(block: bytes) -> str:
    for magic, kind in _MAGIC.items():
        if block.startswith(magic):
            return f" (this looks like {kind}; expected tar or tar.gz)"
    return ""
