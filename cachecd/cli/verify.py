"""`cachecd verify DIR`: is every record on disk as it was written?"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cachecd.cli.options import Endpoint
from cachecd.quantities import approximate_size, printable
from cachecd_client.errors import CallerError

if TYPE_CHECKING:
    from cachecd.cli.checked_files import Fault


def command(
    directory: Annotated[
        Path, typer.Argument(help="A cache directory, or a directory with TFRecord files.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    report: Annotated[
        bool,
        typer.Option(
            "--report",
            help="Report bad shards to the daemon, which checks them and replaces damaged shards.",
        ),
    ] = False,
    endpoint: Endpoint = None,
) -> int:
    """Read every shard and its sidecar, and check all CRCs. The exit code is 1 if a file is bad.

    Without --report the command changes nothing. A daemon may use the directory meanwhile. Each bad file is
    one line, with the byte at which its first bad record begins. A live shard that holds a record of
    another live shard is bad. Files that cachecd did not write are listed as unknown.
    """
    from cachecd.cli.checked_files import check_all, take_inventory
    from cachecd.cli.progress import Progress

    inventory = take_inventory(directory)
    if report and not inventory.is_cache:
        raise CallerError(f"{directory} is not a cache directory, which --report needs")
    faults = list(inventory.unreadable)
    files: set[Path] = set()
    records = size = read = 0
    total = sum(map(_size, inventory.files))
    with Progress() as progress:
        for checked in check_all(inventory):
            files.add(checked.path)
            records += checked.records
            size += checked.size
            faults += checked.faults
            if not as_json:
                _print_faults(checked.faults)
            read += _size(checked.path)
            progress.note("verified", read, total)
    if as_json:
        document = {
            "directory": _shown(directory),
            "files": len(files),
            "records": records,
            "bytes": size,
            "bad": [_json(fault) for fault in faults],
            "unknown": [_shown(path) for path in inventory.unknown],
        }
        print(json.dumps(document, indent=2))
    else:
        _print_faults(inventory.unreadable)
        for path in inventory.unknown:
            print(f"{_shown(path)}: unknown, not checked")
        bad = len({fault.path for fault in faults})
        print(
            f"{len(files)} TFRecord files, {records} records, {approximate_size(size)} verified; {bad} "
            f"bad, {len(inventory.unknown)} unknown"
        )
    if report:
        _report([fault for fault in faults if not fault.unreadable], endpoint)
    return 1 if faults else 0


def _size(path: Path) -> int:
    """Returns the bytes of a file; 0 if the daemon has removed it."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _report(faults: Iterable[Fault], endpoint: str | None) -> None:
    """Reports each bad shard to the daemon, as a trainer reports a corrupt record."""
    from cachecd.disk.layout import parse
    from cachecd_client.protocol import ReportCorrupt
    from cachecd_client.transport import Transport, endpoint_of

    daemon = Transport(endpoint_of(endpoint, os.environ))
    for fault in faults:
        file, generation = parse(fault.path.name), fault.path.parents[1]
        assert file is not None  # `take_inventory` has parsed the name
        names = (generation.parent.name, generation.name, file.number, file.version)
        daemon.ask(ReportCorrupt(uuid.uuid4().hex, *names, fault.offset or 0, fault.why), 10.0)


def _print_faults(faults: Iterable[Fault]) -> None:
    for fault in faults:
        where = "" if fault.offset is None else f"corrupt record at byte {fault.offset}: "
        print(f"{_shown(fault.path)}: {where}{fault.why}")


def _json(fault: Fault) -> dict[str, Any]:
    return {"path": _shown(fault.path), "offset": fault.offset, "why": fault.why}


def _shown(path: Path) -> str:
    """Returns the path on one line, in printable characters."""
    return printable(os.fsencode(path).decode("utf-8", "backslashreplace"))
