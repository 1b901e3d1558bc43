"""The lister process: `python -m cachecd.units.lister`, which lists the units of one source and ends.

For sources whose units follow only from user code, a decoding library, or a long table. None of these may
run in the daemon, which stays small and lives for months. One question arrives on stdin. Pages of units and
the result leave on stdout, in frames (cachecd.sampler.messages). The process ends with the listing, and at
once when stdin ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

from cachecd.config import SourceConfig
from cachecd.errors import ConfigError, SourceError
from cachecd.model import ObjectInfo
from cachecd.sampler.child import serve_the_daemon
from cachecd.sampler.messages import bounded, framed, read_frame
from cachecd.sampler.usercode import search_first
from cachecd.stores.backend import LeftOut
from cachecd.units.source_units import list_units
from cachecd.units.unit_store import open_unit_store


@dataclass(frozen=True, slots=True)
class Question:
    """List the units of `source` (a SourceConfig as JSON), or only the units after the key `after`. `path`:
    directories that are searched first for imports. `left_out`: the fields of LeftOut so far."""

    source: dict[str, Any]
    connections: int
    after: str
    left_out: dict[str, Any]
    path: Sequence[str] = ()

    def pack(self) -> bytes:
        """Packs the question into one frame."""
        return framed(json.dumps(dataclasses.asdict(self)))


@dataclass(frozen=True, slots=True)
class ListingRefused:
    """The units cannot be listed: `cause` names what is at fault."""

    cause: Literal["source", "configuration"]
    reason: str


# A page of units; what is left out up to the next page; None: there are no more.
Reply = list[ObjectInfo] | LeftOut | ListingRefused | None


def pack(reply: Reply) -> bytes:
    """Packs a reply into one frame. A unit is a list of its fields and not a mapping, because there may be
    millions."""
    if isinstance(reply, list):
        return framed(json.dumps([[u.key, u.size, u.etag, u.begin, u.label] for u in reply]))
    return framed(json.dumps(reply and dataclasses.asdict(reply)))


def unpack(body: bytes) -> Reply:
    """Unpacks the reply of one frame's body. ValueError, TypeError or KeyError if the body is not a
    reply."""
    fields = json.loads(body)
    if isinstance(fields, list):
        return [ObjectInfo(*unit) for unit in fields]
    if fields is not None and "kinds" in fields:
        return LeftOut(**fields)
    return None if fields is None else ListingRefused(fields["cause"], bounded(fields["reason"]))


def main() -> None:
    requests, replies = serve_the_daemon()
    body = read_frame(requests)
    if body is None:
        return
    threading.Thread(target=_end_at_eof, args=(requests,), name="listen", daemon=True).start()
    with contextlib.suppress(BrokenPipeError):
        _reply(replies, _list(Question(**json.loads(body)), replies))
    os._exit(0)  # whatever threads the user's code has started


def _list(question: Question, replies: BinaryIO) -> ListingRefused | None:
    """Sends all pages. Returns ListingRefused if the units cannot be listed."""
    try:
        source = SourceConfig.model_validate(question.source)
        search_first(question.path)
        # It has come so far: what takes long from now on is not its imports.
        _reply(replies, [])
        left_out = LeftOut(**question.left_out)
        store = open_unit_store(source, question.connections, left_out=left_out)
        for units in list_units(source, store, question.after):
            _reply(replies, left_out)
            _reply(replies, units)
        _reply(replies, left_out)
    except (BrokenPipeError, MemoryError):
        raise
    except ConfigError as error:
        return ListingRefused("configuration", str(error))
    except SourceError as error:
        return ListingRefused("source", str(error))
    except BaseException as error:  # the user's code may do anything
        traceback.print_exc()
        message = "".join(traceback.format_exception_only(error)).strip()
        return ListingRefused("source", f"its units cannot be listed: {message}")
    return None


def _reply(replies: BinaryIO, reply: Reply) -> None:
    replies.write(pack(reply))
    replies.flush()


def _end_at_eof(requests: BinaryIO) -> None:
    requests.read(1)
    os._exit(0)


if __name__ == "__main__":
    main()
