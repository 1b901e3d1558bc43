"""What is done to shards on disk: published, unlinked, verified; the result goes back as an event.

Nothing here decides, and nothing here keeps the event loop waiting for a shard's bytes. What the disk
refuses is tried again, ever more rarely, until it is done.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import structlog

from cachecd.complaints import Complaints
from cachecd.disk.filesystem import refusing, sync_directory
from cachecd.errors import DiskError, NameTakenError
from cachecd.events import Event, ShardFailed, ShardPublished, ShardUnlinked, ShardVerified
from cachecd.layout import Layout
from cachecd.model import Held, Outcome, Shard, ShardId
from cachecd.pause import Pause
from cachecd.verify import check_file
from cachecd_client._core import Sidecar
from cachecd_client.errors import CorruptError

# A shard that was reported and cannot be read for so long is given up like a corrupt one: a disk that
# does not answer for a while must not cost what lies on it, nor a bad sector a place for ever.
_UNREADABLE_FOR = 300.0  # seconds

_log = structlog.get_logger("cachecd.shards")


class ShardWork:
    """Carries PublishShard, UnlinkShard and VerifyShard out, each as a task of the event loop."""

    def __init__(
        self,
        layout: Layout,
        held_by: Callable[[ShardId], Held],
        feed: Callable[[Event], None],
        complaints: Complaints,
        check: Callable[[], None],
    ) -> None:
        """`held_by`: what the plan counts the shard for; DiskError if that is not known now.
        `check`: DiskError if what lies under cache.dir is not what it was."""
        self._layout = layout
        self._held_by = held_by
        self._feed = feed
        self._complaints = complaints
        self._check = check

    async def publish(self, shard: ShardId, generation: str, outcome: Outcome) -> None:
        """Ends in ShardPublished, or in ShardFailed with nothing of it left on disk."""
        try:
            self._check()
            sealed, units = await asyncio.to_thread(
                publish_shard, self._layout, shard, generation, outcome
            )
        except DiskError as error:
            self._complaints.refused("shard not published", "", str(error))
            halves = not isinstance(error, NameTakenError)
            await self.discard(ShardFailed(shard, "disk", str(error)), halves=halves)
        except Exception as error:  # else its room would stay reserved, and its units be nobody's
            why = self._unknown("shard not published", "", error)
            await self.discard(ShardFailed(shard, "disk", why), halves=True)
        else:
            self._complaints.works("shard not published", "")
            self._feed(ShardPublished(sealed, units))

    async def discard(self, failed: ShardFailed, *, halves: bool = False) -> None:
        """Ends in `failed`, once nothing of the shard is left: until then its room stays reserved.

        `halves`: its publication failed, so there may be something under its final names too.
        """
        paths = [self._layout.temporary(failed.shard)]
        paths += [self._layout.shard(failed.shard)] if halves else []

        async def remove() -> None:
            self._check()
            for path in paths:
                if any(map(os.path.lexists, (path, Layout.sidecar(path)))):
                    await asyncio.to_thread(_discard, path)

        await self._until_done("shard not discarded", failed.shard, remove)
        self._feed(failed)

    async def unlink(self, shard: ShardId) -> None:
        """Ends in ShardUnlinked, once the disk allows it."""
        held = Held()

        async def remove() -> None:
            nonlocal held
            self._check()  # what was only moved away is not to be forgotten
            held = self._held_by(shard)
            await asyncio.to_thread(unlink_shard, self._layout, shard)

        await self._until_done("shard not removed", shard, remove)
        self._feed(ShardUnlinked(shard, held.units))

    async def verify(self, shard: ShardId) -> None:
        """Ends in ShardVerified. What cannot be read is not corrupt: it stays out of service until it
        can be, or has not been for _UNREADABLE_FOR seconds."""
        until = time.monotonic() + _UNREADABLE_FOR
        found: list[str] = []
        held = Held()

        async def read() -> None:
            nonlocal held
            self._check()
            held = self._held_by(shard)
            if not found:
                try:
                    found.append(await asyncio.to_thread(verify_shard, self._layout, shard))
                except DiskError as error:
                    if time.monotonic() < until:
                        raise
                    found.append(str(error))

        await self._until_done("shard not verified", shard, read)
        if why := found[0]:
            _log.error("shard is corrupt: barred, and fetched again", shard=str(shard), why=why)
        self._feed(ShardVerified(shard, not why, held))

    async def _until_done(
        self, what: str, shard: ShardId, do: Callable[[], Awaitable[None]]
    ) -> None:
        pause = Pause(shortest=0.1)
        while True:
            try:
                await do()
            except DiskError as error:
                self._complaints.refused(what, str(shard), str(error))
                pause.begin(0.0, str(error))
                await asyncio.sleep(pause.until)
            except Exception as error:
                pause.begin(0.0, self._unknown(what, str(shard), error))
                await asyncio.sleep(pause.until)
            else:
                self._complaints.works(what, str(shard))
                return

    def _unknown(self, what: str, where: str, error: Exception) -> str:
        """Says what failed otherwise than thought, with its traceback; the reason."""
        why = f"otherwise than thought: {type(error).__name__}: {error}"
        if self._complaints.refused(what, where, why):
            _log.error("its traceback", what=what, exc_info=error)
        return why


def publish(temporary: Path, final: Path) -> None:
    """Gives a sealed shard and its sidecar their names; when it returns, both are durable.

    The sidecar goes first, so whoever sees the shard sees a whole pair. Nothing is overwritten.
    NameTakenError if there is something under either name. On any other DiskError neither has its
    final name and both are where they were, unless the disk refused even that.
    """
    index, final_index = Layout.sidecar(temporary), Layout.sidecar(final)
    for path in (final, final_index):
        if os.path.lexists(path):
            raise NameTakenError(
                f"{path} exists already, though its number was never used: remove it, or restart the "
                "daemon to take it on"
            )
    with refusing(f"cannot publish {final}"):
        os.rename(index, final_index)
        try:
            os.rename(temporary, final)
            sync_directory(final.parent)
        except OSError:
            for new, old in ((final, temporary), (final_index, index)):
                if os.path.lexists(new):
                    os.rename(new, old)
            raise


def publish_shard(
    layout: Layout, shard: ShardId, generation: str, outcome: Outcome
) -> tuple[Shard, list[int]]:
    """Gives a sealed temporary file its name; the shard and the units that it holds records of.

    DiskError if that fails: what is left, and under which names, is for the caller to remove.
    """
    temporary, final = layout.temporary(shard), layout.shard(shard)
    with refusing(f"cannot publish {final}"):
        try:
            sidecar = Sidecar.read(str(Layout.sidecar(temporary)))
            units = np.unique(sidecar.units).tolist()
        except CorruptError as error:
            raise DiskError(f"cannot publish {final}: {error}") from error
        publish(temporary, final)
        allocated = sum(p.stat().st_blocks * 512 for p in (final, Layout.sidecar(final)))
    records, data_bytes = outcome.records, outcome.data_bytes
    digest = int(json.loads(sidecar.meta).get("digest", "0"), 16)
    return Shard(shard, generation, records, data_bytes, allocated, digest), units


def _discard(path: Path) -> None:
    for file in (path, Layout.sidecar(path)):
        with refusing(f"cannot remove {file}"):
            file.unlink(missing_ok=True)


def unlink_shard(layout: Layout, shard: ShardId) -> None:
    """Removes both files, the shard first: a sidecar alone is no shard to anybody. DiskError."""
    path = layout.shard(shard)
    _discard(path)
    with refusing(f"cannot sync {path.parent}"):
        sync_directory(path.parent)


def verify_shard(layout: Layout, shard: ShardId) -> str:
    """Reads the shard and its sidecar wholly; what is wrong with it, or "" if it is sound.

    DiskError if the disk does not give back enough of it to tell.
    """
    checked = check_file(layout.shard(shard), of_cache=True)
    if checked is None:
        return f"{layout.shard(shard)} is gone"
    damage = [fault for fault in checked.faults if not fault.unreadable]
    if checked.faults and not damage:
        raise DiskError("; ".join(f"{fault.path} {fault.why}" for fault in checked.faults))
    return "; ".join(f"{fault.path}: {fault.why}" for fault in damage)
