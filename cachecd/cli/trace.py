"""`cachecd trace`: a timeline of daemon, samplers and trainers, as Chrome's trace events."""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cachecd.cli.options import Endpoint
from cachecd_client.errors import CallerError

if TYPE_CHECKING:
    from cachecd_client.protocol import Span

_PATIENCE = 5.0  # seconds for the reply
# Workers report once a second, and a report may wait for the next message.
_REPORTED_WITHIN = 1.5
_MOST = 58.0  # seconds: the daemon keeps the spans of a minute


def command(
    seconds: Annotated[
        float, typer.Option(min=0.1, max=_MOST, help="How long to watch, at most 58 seconds.")
    ] = 10.0,
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="FILE", help="The file to write.")
    ] = Path("timeline.json"),
    endpoint: Endpoint = None,
) -> None:
    """Watch a running daemon for some seconds, and write a timeline for Perfetto or chrome://tracing.

    Open the file at https://ui.perfetto.dev, which reads it in the browser. Each process is a row: the
    daemon, each worker and each trainer rank. Of each process the file has the 64 longest spans of each
    second, and of the workers some records. If the daemon has dropped spans of these seconds, a line says
    which part is complete. An existing file is replaced.
    """
    from cachecd_client.protocol import AskSpans, SpansReply
    from cachecd_client.transport import Transport, endpoint_of

    daemon = Transport(endpoint_of(endpoint, os.environ))
    daemon.ask(AskSpans(uuid.uuid4().hex, 0.0), _PATIENCE)  # so that a mistake shows at once
    _write(out, None)
    print(f"cachecd: watching for {seconds:g} s", file=sys.stderr)
    begin = time.monotonic()
    time.sleep(seconds + _REPORTED_WITHIN)
    request = AskSpans(uuid.uuid4().hex, seconds + _REPORTED_WITHIN)
    reply = daemon.ask(request, _PATIENCE)
    assert isinstance(reply, SpansReply)
    _write(out, json.dumps(document(reply.spans), separators=(",", ":")))
    total = sum(map(len, reply.spans.values()))
    print(
        f"{out}: {total} spans of {len(reply.spans)} processes; open it at https://ui.perfetto.dev"
    )
    if (missing := reply.complete_since - begin) > 0:
        print(
            f"cachecd: spans of the first {min(missing, seconds):.1f} s are missing, because the daemon "
            f"keeps only 20,000 spans; the rest is complete. Choose a smaller --seconds",
            file=sys.stderr,
        )


def _write(out: Path, text: str | None) -> None:
    """Writes the file; None: only checks that this is possible. CallerError if it is not."""
    try:
        with out.open("a" if text is None else "w") as file:
            file.write(text or "")
    except OSError as error:
        raise CallerError(
            f"cannot write {out}: {error.strerror}: name another file with -o"
        ) from error


def document(spans: Mapping[str, Sequence[Span]]) -> dict[str, Any]:
    """Returns the trace: a process for each key, with as many rows for each kind of span as spans of this
    kind overlap. Times begin at the first span."""
    begins = [begin for each in spans.values() for _, begin, _ in each]
    events: list[dict[str, Any]] = []
    for pid, process in enumerate(sorted(spans, key=_rank), 1):
        events += _process(pid, process, spans[process], min(begins, default=0.0))
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _rank(process: str) -> tuple[int, str]:
    """Orders the daemon before its workers, and workers before trainers."""
    kinds = ("daemon", "worker")
    kind = process.partition(" ")[0]
    return (kinds.index(kind) if kind in kinds else len(kinds)), process


def _process(
    pid: int, process: str, spans: Iterable[Span], zero: float
) -> Iterator[dict[str, Any]]:
    yield _name("process_name", pid, 0, process)
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
    ends: dict[str, list[float]] = {}  # by kind: when the last span of each row ends
    rows: dict[tuple[str, int], int] = {}
    for name, begin, seconds in sorted(spans, key=lambda span: span[1]):
        kind, _, subject = name.partition(" ")
        used = ends.setdefault(kind, [])
        row = next((n for n, end in enumerate(used) if end <= begin), len(used))
        used[row:] = [begin + seconds, *used[row + 1 :]]
        if (kind, row) not in rows:
            rows[kind, row] = len(rows) + 1
            yield _name("thread_name", pid, rows[kind, row], f"{kind} {row + 1}" if row else kind)
        microseconds = round(1e6 * (begin - zero), 1), round(1e6 * seconds, 1)
        yield {
            "ph": "X",
            "name": kind,
            "pid": pid,
            "tid": rows[kind, row],
            "ts": microseconds[0],
            "dur": microseconds[1],
            **({"args": {"of": subject}} if subject else {}),
        }


def _name(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}
