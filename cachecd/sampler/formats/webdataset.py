"""Format `webdataset`: tar files whose neighbouring members form samples. One sample is one record.

The rules are WebDataset's. A member's key is its path up to the first dot of its base name; the text after
the dot, in lower case, names the feature. Consecutive members with one key are one sample. Hard links are
the members that they name. Directories, devices, names without a dot or with a leading dot, and `__...__`
are passed over. A sample that cannot be used, as one with a symbolic link, costs no other. Features:
`__key__` (bytes), then one for each member, by name (extensions.py).

A .tar.gz is inflated as it arrives; its offsets count inflated bytes.
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
from cachecd.sampler.formats.records import Format, named
from cachecd.sampler.formats.tar import Member, MemberError, Tar, shown

_MOST_MEMBERS = 1000
_LONGEST_NAME = 255  # bytes of a feature's name, as of a file's
_META = re.compile(rb"__[^/]*__(/|$)")


class WebDataset(Format):
    """Reads samples as records."""

    async def read(
        self, unit: Unit, content: Content
    ) -> AsyncGenerator[tuple[int, dict[str, Any] | RecordError], None]:
        chunks, packed = await unpacked(unit, content, ("GZIP",))

        async def reread(start: int, stop: int) -> Buffer:
            return await content.read(start, min(stop, unit.size))

        end = None if packed else unit.size
        tar = Tar(chunks, unit.offset, end, None if packed else reread)
        sample: _Sample | None = None
        before = unit.record > 0
        try:
            while (member := await tar.next()) is not None:
                parts = _split(member.name)
                if parts is None:
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
    """The members of one key. `begin`: the byte at which the headers of the first member begin. `fault`:
    why the sample cannot be used."""

    def __init__(self, begin: int, key: bytes) -> None:
        self.begin = begin
        self.key = key
        self.files: dict[str, bytes] = {}
        self.fault: RecordError | None = None
        self._size = 0

    def expect(self, name: bytes, member: Member) -> str:
        """Checks that another member fits in, before it is read. Returns its feature's name.
        MemberError."""
        feature = _feature(name)
        if feature is None:
            raise MemberError(
                f"the sample has a member whose extension is {shown(name)}, expected at most "
                f"{_LONGEST_NAME} bytes of UTF-8"
            )
        if feature in self.files or feature == SAMPLE:
            raise MemberError(f"the sample has {feature!r} twice, again at byte {member.begin}")
        if len(self.files) == _MOST_MEMBERS:
            raise MemberError(
                f"the sample has more than {_MOST_MEMBERS} members: a key ends at the first dot of the "
                "name, so it must not have one itself"
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
    """Returns a member's key, and the text after its dot; None if it belongs to no sample."""
    folder, slash, base = path.rpartition(b"/")
    stem, _, name = base.partition(b".")
    if not stem or not name or _META.match(path):
        return None
    return folder + slash + stem, name


def _feature(name: bytes) -> str | None:
    """Returns the feature's name, or None if the text cannot be a name."""
    try:
        return name.decode().lower() if len(name) <= _LONGEST_NAME else None
    except UnicodeDecodeError:
        return None
