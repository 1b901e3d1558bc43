"""Format `webdataset`: tar files in which consecutive members with the same key are one sample, one record.

The rules are WebDataset's. A member's key is its path up to the first dot of the base name. The text after
the dot, in lower case, is the feature's name. Hard links are resolved. Directories, devices, names without
a dot or with a leading dot, and `__...__` are skipped. A sample that cannot be used, for example because
it has a symbolic link, is skipped alone. Features: `__key__` (bytes), and the features of each member
(extensions.py).

A .tar.gz or .tar.zst is inflated as it arrives; its offsets count inflated bytes.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from typing import Any

from typing_extensions import Buffer

from cachecd.errors import RecordError, UnitError
from cachecd.model import SAMPLE, Unit
from cachecd.sampler.formats.content import Content
from cachecd.sampler.formats.extensions import features
from cachecd.sampler.formats.packed import LARGEST, unpacked
from cachecd.sampler.formats.records import Format
from cachecd.sampler.formats.tar import Member, MemberError, Tar, shown
from cachecd.sampler.transforms import named

_MOST_MEMBERS = 1000
_LONGEST_NAME = 255  # bytes of a feature's name: the limit of file names
_META = re.compile(rb"__[^/]*__(/|$)")


class WebDataset(Format):
    """Reads samples as records."""

    async def read(
        self, unit: Unit, content: Content
    ) -> AsyncGenerator[tuple[int, dict[str, Any] | RecordError], None]:
        chunks, packed = await unpacked(unit, content, ("GZIP", "ZSTD"))

        async def reread(start: int, stop: int) -> Buffer:
            return await content.read(start, min(stop, unit.size))

        end = None if packed else unit.size
        tar = Tar(chunks, unit.offset, end, None if packed else reread)
        sample: _Sample | None = None
        before = unit.record > 0
        try:
            while (member := await tar.next()) is not None:
                if (parts := _split(member.name)) is None:
                    continue
                key, name = parts
                if sample is not None and sample.key != key:
                    yield 0 if packed else sample.begin, sample.record()
                    before, sample = True, None
                if sample is None:
                    sample = _Sample(member.begin, key)
                try:
                    if sample.fault is None:
                        feature = sample.expect(name, member)
                        sample.files[feature] = await tar.read(member)
                except MemberError as error:
                    sample.files, sample.fault = {}, RecordError(str(error))
            if sample is not None:
                yield 0 if packed else sample.begin, sample.record()
                before = True
            await tar.finish()
        except ValueError as error:
            kept = "; the samples before it are kept" if before else ""
            raise UnitError(f"{error}{kept}") from error


class _Sample:
    """The members with one key. `begin`: the offset of the first member's headers. `fault`: the reason the
    sample cannot be used."""

    def __init__(self, begin: int, key: bytes) -> None:
        self.begin = begin
        self.key = key
        self.files: dict[str, bytes] = {}
        self.fault: RecordError | None = None
        self._size = 0

    def expect(self, name: bytes, member: Member) -> str:
        """Checks, before the next member is read, that the sample can hold it. Returns the feature's name.
        MemberError."""
        try:
            feature = name.decode().lower() if len(name) <= _LONGEST_NAME else ""
        except UnicodeDecodeError:
            feature = ""
        if not feature:
            raise MemberError(
                f"the sample has a member whose extension is {shown(name)}, expected at most "
                f"{_LONGEST_NAME} bytes of UTF-8"
            )
        if feature in self.files or feature == SAMPLE:
            raise MemberError(f"the sample has {feature!r} twice, again at byte {member.begin}")
        if len(self.files) == _MOST_MEMBERS:
            raise MemberError(
                f"the sample has more than {_MOST_MEMBERS} members: a key ends at the first dot of the "
                "name, so a key must not have a dot"
            )
        self._size += member.size
        if self._size > LARGEST:
            raise MemberError(
                f"the sample has {self._size} bytes or more, expected at most {LARGEST}"
            )
        return feature

    def record(self) -> dict[str, Any] | RecordError:
        record: dict[str, Any] = {SAMPLE: self.key}
        if self.fault is not None:
            return named(self.fault, record)
        for name in sorted(self.files):
            try:
                record.update(features(name, self.files[name]))
            except ValueError as error:
                return named(RecordError(f".{name}: {error}"), record)
        return record


def _split(path: bytes) -> tuple[bytes, bytes] | None:
    """Returns (key, text after the dot) of a member; None if it belongs to no sample."""
    folder, slash, base = path.rpartition(b"/")
    stem, _, name = base.partition(b".")
    if not stem or not name or _META.match(path):
        return None
    return folder + slash + stem, name
