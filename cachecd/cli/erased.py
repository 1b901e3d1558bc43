"""`cachecd erased [DATASET] KEY...`: does this disk still have a copy of an excluded object?"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cachecd.cli.options import AsJson, CacheDirectory, Endpoint, Samples, samples_of
from cachecd.errors import DamagedError
from cachecd_client.errors import CallerError, CorruptError

if TYPE_CHECKING:
    from cachecd.disk.layout import Layout


def command(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="[DATASET] KEY",
            help="The dataset's name, and the objects, by their keys under the source's URL. A single "
            "argument is a key.",
        ),
    ],
    samples: Samples = None,
    directory: CacheDirectory = None,
    endpoint: Endpoint = None,
    as_json: AsJson = False,
) -> int:
    """Search all shards of all datasets and generations for records of objects, or of samples of a tar.
    The exit code is 1 if a copy is left.

    `cachecd exclude` removes records from a dataset. A shard with such a record stays until the last
    lease that names the shard ends: run this command after that. A damaged shard counts as a copy,
    because it may have one. A shard that is being written has no list of objects. It counts as a copy
    only if it has a record with the name of a sample. The daemon never publishes a shard with an excluded
    record. This command changes nothing.
    """
    from cachecd.cli.where import directory_of_the_daemon
    from cachecd.disk.layout import Layout
    from cachecd_client.protocol import sample_names

    dataset, keys = (arguments[0], arguments[1:]) if len(arguments) > 1 else ("", arguments)
    samples = samples_of(keys, samples)
    layout = Layout(directory or directory_of_the_daemon(endpoint))
    shards = list(find_copies(layout, dataset, keys, sample_names(samples)))
    copies = [(path, why) for path, why in shards if why]
    unfinished = len(shards) - len(copies)
    if as_json:
        document = {"dataset": dataset, "keys": keys, "samples": samples}
        shown = [{"path": str(path), "why": why} for path, why in copies]
        print(json.dumps({**document, "copies": shown, "unfinished": unfinished}, indent=2))
        return 1 if copies else 0
    for path, why in copies:
        print(f"{path}: {why}")
    summary = f"{len(copies)} shards may hold such records" if copies else "no copy is left"
    if samples and not copies:
        summary += " under these names"
    if unfinished:
        summary += (
            f" in finished shards; {unfinished} shards are being written, and the daemon publishes no "
            "shard with an excluded record"
        )
    print(summary)
    return 1 if copies else 0


def find_copies(
    layout: Layout, dataset: str, keys: Sequence[str], samples: Sequence[str]
) -> Iterator[tuple[Path, str]]:
    """Searches for records of these objects, or of these samples of a single object. Yields (path,
    reason) for each shard file that has or may have such a record, and (path, "") for each other
    unfinished shard. DiskError. CallerError if there is no such cache directory."""
    from cachecd.disk.filesystem import refusing
    from cachecd.disk.layout import DATA, NEW, parse
    from cachecd.disk.sidecar import as_stored, holds, sample_of
    from cachecd_client._core import read_record

    def names_in(path: Path) -> Iterator[str]:
        """Yields the names in an unfinished shard, up to the first record that is not whole."""
        offset = 0
        with contextlib.suppress(CorruptError, ValueError, OSError):
            while True:
                record = read_record(str(path), offset)
                yield sample_of(record)
                offset += len(record) + 16  # bytes of the frame

    if not layout.datasets.is_dir():
        raise CallerError(f"{layout.root} is not a cache directory: name the cache with --dir")
    # A record without a name may belong to the sample.
    wanted = as_stored(dict.fromkeys(keys, frozenset([*samples, ""] if samples else [])))
    for name, generation in layout.generations():
        shards = layout.generation(name, generation).shards
        elsewhere = (
            "" if name.removesuffix("-eval") == dataset.removesuffix("-eval") else f" in {name}"
        )
        with refusing(f"cannot list {shards}"):
            paths = sorted(shards.iterdir()) if shards.exists() else []
        for path in paths:
            if (file := parse(path.name)) is None or file.kind not in (DATA, NEW):
                continue
            sidecar = path.with_name(path.name + ".idx")
            if file.kind == NEW and not sidecar.exists():
                is_copy = samples and not {*samples}.isdisjoint(names_in(path))
                why = f"is being written, and has a record with this name{elsewhere}"
                yield path, why if is_copy else ""
                continue
            try:
                if holds(sidecar, wanted):
                    yield path, f"holds a record{elsewhere}"
            except DamagedError as error:
                if path.exists():  # else it was unlinked meanwhile
                    yield path, f"may hold a record{elsewhere}: {error}"
