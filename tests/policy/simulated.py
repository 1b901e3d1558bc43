"""A disk and workers for the policy: they carry out its commands, and nothing is fetched.

`Disk` is what survives a kill: a new `Policy` is built from it alone. Nothing here looks into the policy.
"""

from __future__ import annotations

from collections.abc import Iterator

from cachecd.model import Cursor, Lane, ShardFacts, ShardFound, Skipped, StreamId
from cachecd.policy import commands as do
from cachecd.policy import events as ev
from cachecd.policy.values import Figures, GenerationId, Head, Lease, Piece
from tests.policy.workers import OVERHEAD, Directory, Object, Shard, Worker


def manifest_length(lease: Lease) -> int:
    return 32 * (1 + len(lease.intervals) + len(lease.versions))


class Disk:
    """What is durable."""

    def __init__(self) -> None:
        self.directories: dict[GenerationId, Directory] = {}
        self.manifests: dict[str, Lease] = {}
        self.marks: dict[str, list[tuple[int | None, int | None]]] = {}
        self.figures: dict[str, Figures] = {}
        self.excluded: set[str] = set()
        self.open_exclusions: dict[str, tuple[str, ...]] = {}


class Simulated:
    """Carries out commands. `pending` are those that are under way: a kill loses them."""

    def __init__(self) -> None:
        self.disk = Disk()
        self.sources: dict[str, dict[str, Object]] = {}
        self.other = 0  # bytes that are no shards
        self.pending: list[do.Command] = []
        self.workers: dict[StreamId, Worker] = {}
        self.sealed: dict[StreamId, list[tuple[int, Shard]]] = {}
        self.making: dict[StreamId, do.MakeSupplement] = {}
        self.remaking: set[do.RemakeShard] = set()
        self.left: set[int] = set()  # units with records that did not fit into the last supplement

    def objects(self, dataset: str) -> dict[str, Object]:
        return self.sources[dataset]

    def directory(self, name: StreamId | GenerationId) -> Directory:
        generation = name.generation if isinstance(name, StreamId) else name.name
        return self.disk.directories[GenerationId(name.dataset, generation)]

    # --- bytes

    def footprint(self, name: StreamId | GenerationId) -> int:
        return self.directory(name).shape.capacity + 3

    def used(self) -> int:
        """What is on disk: shards, and the space of drafts and sealed files, taken beforehand."""
        shards = sum(s.size for d in self.disk.directories.values() for s in d.shards.values())
        drafts = sum(len(w.granted) * self.footprint(n) for n, w in self.workers.items())
        drafts += sum(shard.size for each in self.sealed.values() for _, shard in each)
        drafts += sum(self.footprint(name) for name in self.making)
        for command in self.remaking:
            shards += self.footprint(command.generation)
            if command.drop:  # the damaged file has gone before
                shards -= (
                    self.directory(command.generation).shards[command.number, command.version].size
                )
        return shards + drafts + self.other

    def promised(self) -> int:
        """The room of grants that are under way."""
        names = [c.stream for c in self.pending if isinstance(c, do.GrantShard | do.MakeSupplement)]
        names += [c.generation for c in self.pending if isinstance(c, do.RemakeShard)]
        return sum(self.footprint(name) for name in names)

    # --- workers

    def seal(self, name: StreamId, number: int, shard: Shard) -> ev.ShardSealed:
        if shard.after != shard.before or shard.skipped or shard.records:
            self.sealed.setdefault(name, []).append((number, shard))
        facts = self.facts(shard, 0)
        return ev.ShardSealed(name, number, shard.before, shard.after, facts, shard.skipped)

    def facts(self, shard: Shard, version: int) -> ShardFacts:
        data = shard.size - OVERHEAD
        digest = sum(hash(record) for record in shard.records) % (1 << 64)
        return ShardFacts(shard.size, len(shard.records), data, shard.ended, digest, version)

    def lose_worker(self, name: StreamId) -> None:
        """Its drafts are gone, and the commands to it; what is sealed stays."""
        void = do.OpenStream | do.SetUntil | do.GrantShard | do.MakeSupplement
        self.pending = [c for c in self.pending if not (isinstance(c, void) and c.stream == name)]
        self.workers.pop(name, None)
        self.making.pop(name, None)

    def supplement(self, name: StreamId) -> ev.Event:
        """A worker finishes a supplement."""
        command = self.making.pop(name)
        directory, records, skipped = self.directory(name), [], []
        pieces, size, ended = list(command.pieces), OVERHEAD, 0
        while pieces:
            piece = pieces[0]
            key = directory.keys[piece.unit]
            source = self.objects(name.dataset).get(key)
            lane = Lane(0, 0, piece.unit, source.etag if source else 0, 0, piece.record)
            reason = "gone" if source is None else ""
            if source and source.fault and source.fault[1] <= piece.record:
                reason = "fault"
            if reason or key in self.disk.excluded:
                passing = not (source and source.fault) or source.fault[0]
                record = lane.record
                skip = Skipped(piece.unit, key, lane.etag, record, reason or "excluded", passing)
                skipped.append(skip)
            elif piece.record < min(len(source.records), piece.stop or 1 << 60):
                add = source.records[piece.record]
                if size + add > directory.shape.capacity:
                    break
                size += add
                records.append((piece.unit, source.etag, piece.record, add))
                ended += piece.record + 1 == len(source.records)
                pieces[0] = piece._replace(record=piece.record + 1)
                continue
            pieces.pop(0)
        place, self.left = len(command.pieces) - len(pieces), {piece.unit for piece in pieces}
        lanes = ()
        if pieces and pieces[0] != command.pieces[place]:
            lanes = (Lane(0, place, pieces[0].unit, 0, 0, pieces[0].record),)
        after = Cursor(0, 0, place + len(lanes), lanes)
        shard = Shard(Cursor(), after, tuple(records), tuple(skipped), ended)
        if not records:
            facts = self.facts(shard, 0)
            return ev.ShardSealed(name, command.number, Cursor(), after, facts, shard.skipped)
        return self.seal(name, command.number, shard)

    def missing(
        self, name: GenerationId, begin: int, shards: tuple[tuple[int, int], ...]
    ) -> ev.MissingFound:
        """What these shards of a generation lack."""
        directory = self.disk.directories[name]
        have: dict[int, set[tuple[int, int]]] = {}
        final = set()
        for shard in map(directory.shards.__getitem__, shards):
            for unit, etag, ordinal, _ in shard.records:
                have.setdefault(unit, set()).add((etag, ordinal))
            final |= {(skip.unit, skip.etag) for skip in shard.skipped if not skip.passing}
        pieces: list[Piece] = []
        for unit, key in enumerate(directory.keys):
            source = self.objects(name.dataset).get(key)
            live = have.get(unit, set())
            if not source or unit < begin or key in self.disk.excluded:
                continue
            if (unit, source.etag) in final or {etag for etag, _ in live} - {source.etag}:
                continue
            for ordinal in range(len(source.records)):
                if (source.etag, ordinal) in live:
                    continue
                if pieces and pieces[-1].unit == unit and pieces[-1].stop == ordinal:
                    pieces[-1] = pieces[-1]._replace(stop=ordinal + 1)
                else:
                    pieces.append(Piece(unit, ordinal, ordinal + 1))
        cut = pieces[:20]
        units = [piece.unit for piece in cut]
        if len(cut) < len(pieces):  # whole units
            cut = [p for p in cut if p.unit != units[-1]] or [
                p for p in pieces if p.unit == units[-1]
            ]
        return ev.MissingFound(name, tuple(cut), len(cut) < len(pieces))

    # --- commands

    def carry_out(self, command: do.Command) -> list[ev.Event]:
        """What comes back."""
        match command:
            case do.WriteShape(name, shape):
                self.disk.directories[name].shape = shape
                self.disk.directories[name].orders.clear()
            case do.WriteJudgement(name, contradiction):
                self.disk.directories[name].contradiction = contradiction
            case do.ReadCursor(name, number, version):
                shard = self.disk.directories[name].shards.get((number, version))
                if shard is None or not shard.sidecar:
                    return [ev.ShardLost(*command)]
                return [ev.CursorRead(name, number, shard.before)]
            case do.OpenStream(stream, cursor, until, condemned):
                worker = self.workers[stream] = Worker(self, stream, cursor, until)
                worker.condemned = {each.unit: each.passing for each in condemned}
                return []
            case do.SetUntil(stream, until):
                if stream in self.workers:
                    self.workers[stream].until = until
                return []
            case do.GrantShard(stream, number):
                if stream in self.workers:
                    self.workers[stream].granted.append(number)
                return []
            case do.CloseStream(stream):
                self.lose_worker(stream)
                self.sealed.pop(stream, None)
                return [ev.StreamClosed(stream)]
            case do.PublishShard(stream, number):
                return [self.publish(stream, number)]
            case do.MakeSupplement(stream):
                self.making[stream] = command
                return []
            case do.FindMissing(name, begin, shards):
                known = self.disk.directories[name].shards
                lost = [one for one in shards if one not in known or not known[one].sidecar]
                if lost:
                    reports = [ev.ShardLost(name, *one) for one in lost]
                    return [*reports, ev.MissingFound(name, (), False)]
                return [self.missing(name, begin, shards)]
            case do.KeepFigures(dataset, figures):
                self.disk.figures[dataset] = figures
            case do.MarkRetired(name, names):
                self.disk.directories[name].old |= {number for number, _ in names}
            case do.Unlink(name, heads, names):
                self.disk.directories[name].heads = heads
                self.unlink(self.disk.directories[name], names)
            case do.RemoveGeneration(name):
                del self.disk.directories[name]
            case do.VerifyShard(name, number, version):
                shard = self.disk.directories[name].shards.get((number, version))
                if shard is None or not shard.sidecar:
                    return [ev.ShardLost(*command)]
                return [ev.ShardVerified(name, number, version, shard.intact)]
            case do.MarkBad(name, number, version):
                directory = self.disk.directories.get(name)
                if directory and (shard := directory.shards.get((number, version))):
                    keys = {directory.keys[record[0]] for record in shard.records}
                    directory.bad[number, version] = bool(keys & self.disk.excluded)
            case do.RemakeShard():
                self.remaking.add(command)
                if command.drop:
                    self.directory(command.generation).shards[
                        command.number, command.version
                    ].intact = False
                return []
            case do.WriteExclusion(exclusion, _, keys):
                self.disk.excluded |= set(keys)
                self.disk.open_exclusions[exclusion] = keys
            case do.FindHolders(exclusion):
                return [ev.HoldersFound(exclusion, tuple(self.holders(exclusion)))]
            case do.FinishExclusion(exclusion):
                del self.disk.open_exclusions[exclusion]
            case do.WriteManifest(lease):
                self.disk.manifests[lease.id] = lease
            case do.MarkLease(lease, rank, epoch):
                self.disk.marks.setdefault(lease, []).append((rank, epoch))
            case do.EndLease(lease):
                return self.end_lease(lease)
            case _:
                raise AssertionError(command)
        return [ev.CommandDone(command)]

    def end_lease(self, lease: str) -> list[ev.Event]:
        self.disk.manifests.pop(lease, None)
        return [ev.CommandDone(do.EndLease(lease))]

    def publish(self, stream: StreamId, number: int) -> ev.Event:
        directory = self.directory(stream)
        sealed, shard = self.sealed[stream].pop(0)
        assert sealed == number, "shards of a stream are published in order"
        if {directory.keys[record[0]] for record in shard.records} & self.disk.excluded:
            self.sealed[stream].insert(0, (sealed, shard))
            return ev.PublishRefused(stream, number)
        directory.shards[number, 0] = shard
        return ev.Published(stream, number, shard.size)

    def unlink(self, directory: Directory, names: tuple[tuple[int, int], ...]) -> None:
        for name in names:
            directory.shards.pop(name, None)
            directory.bad.pop(name, None)
        directory.old &= {number for number, _ in directory.shards}

    def holders(self, exclusion: str) -> Iterator[tuple[GenerationId, int, int]]:
        keys = self.disk.open_exclusions[exclusion]
        for name, directory in self.disk.directories.items():
            for (number, version), shard in directory.shards.items():
                if not shard.sidecar or any(directory.keys[r[0]] in keys for r in shard.records):
                    yield name, number, version

    def remake(self, command: do.RemakeShard) -> list[ev.Event]:
        """The next version of a number is made, or cannot be made now."""
        shard = self.directory(command.generation).shards[command.number, command.version]
        if shard.sidecar:
            return [self._remake(command)]
        self.remaking.discard(command)
        failed = ev.RemakeFailed(command.generation, command.number, "the sidecar is lost")
        return [ev.ShardLost(command.generation, command.number, command.version), failed]

    def _remake(self, command: do.RemakeShard) -> ev.Event:
        self.remaking.discard(command)
        name, number, version = command.generation, command.number, command.version
        directory = self.directory(name)
        shard, records = directory.shards[number, version], []
        for unit, etag, ordinal, size in shard.records:
            source = self.objects(name.dataset).get(directory.keys[unit])
            if directory.keys[unit] in self.disk.excluded:
                continue
            if not command.local:
                fault = source.fault if source else None
                if source is None or source.etag != etag:
                    continue
                if fault and fault[1] <= ordinal:
                    if fault[0]:
                        return ev.RemakeFailed(name, number, "the store refuses")
                    continue
            records.append((unit, etag, ordinal, size))
        if command.local and not shard.intact:
            return ev.RemakeFailed(name, number, "the shard is damaged")
        made = Shard(shard.before, shard.after, tuple(records), shard.skipped, shard.ended)
        directory.shards[number, version + 1] = made
        if command.drop:
            self.unlink(directory, ((number, version),))
        return ev.Remade(name, number, self.facts(made, version + 1))

    # --- a start

    def found(self) -> Iterator[ev.Event]:
        """What a start reports, from the disk alone."""
        self.pending, self.workers, self.sealed = [], {}, {}
        self.making, self.remaking = {}, set()
        for name, directory in sorted(
            self.disk.directories.items(), key=lambda kv: kv[0].name, reverse=True
        ):
            yield self._directory_found(name, directory)
            yield self.listed(name)
        for lease in self.disk.manifests.values():
            marks = self.disk.marks.get(lease.id, [])
            begin = max((n for n, mark in enumerate(marks) if mark == (None, None)), default=0)
            ranks = frozenset(rank for rank, _ in marks[begin:] if rank is not None)
            epochs = frozenset(epoch for _, epoch in marks if epoch is not None)
            yield ev.LeaseFound(lease, ranks, epochs)
        for exclusion in self.disk.open_exclusions:
            yield ev.HoldersFound(exclusion, tuple(self.holders(exclusion)))

    def listed(self, name: GenerationId) -> ev.Listed:
        d = self.disk.directories[name]
        sizes = (sum(o.records) for o in self.objects(name.dataset).values())
        return ev.Listed(name, tuple(d.ends), len(d.keys), sum(sizes), d.first, d.completed)

    def _directory_found(self, name: GenerationId, d: Directory) -> ev.GenerationFound:
        figures = self.disk.figures.get(name.dataset, {})
        if d.shape is None:
            return ev.GenerationFound(name, d.split, contradiction=d.contradiction, figures=figures)
        shards, newest = [], d.newest()
        for number, version in newest.items():
            shard = d.shards[number, version]
            status = "damaged" if d.bad.get((number, version)) is False else "live"
            status = "excluded" if d.bad.get((number, version)) else status
            status = status if shard.sidecar else "lost"
            status = "old" if number in d.old else status
            elders = tuple(
                (v, s.size) for (n, v), s in d.shards.items() if n == number and v < version
            )
            shards.append(ShardFound(number, self.facts(shard, version), status, elders))
        heads = []
        for s in range(d.shape.streams + 1):
            head = d.heads[s] if d.heads else Head(0, Cursor())
            files = [(n // (d.shape.streams + 1), d.shards[n, v]) for n, v in newest.items()
                     if n % (d.shape.streams + 1) == s]  # fmt: skip
            for j, shard in files:
                if shard.sidecar and j >= head.next:
                    head = Head(j + 1, shard.after)
            top = max([head.next, *(j + 1 for j, _ in files), *self._leased(name, s)])
            heads.append(Head(top, head.cursor))
        found = name, d.split, d.shape, tuple(heads), tuple(shards)
        return ev.GenerationFound(*found, contradiction=d.contradiction, figures=figures)

    def _leased(self, name: GenerationId, s: int) -> Iterator[int]:
        for lease in self.disk.manifests.values():
            if (lease.dataset, lease.generation) == name:
                yield from (last + 1 for stream, _, last in lease.intervals if stream == s)
