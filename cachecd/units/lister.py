"""The lister process: `python -m cachecd.units.lister`, which lists the units of one source and ends.

Lists sources that need user code, a decoding library, or a long table. These must not run in the daemon,
which stays small and runs for months. The process reads one question from stdin, and writes pages of
units and the result to stdout, in frames (cachecd.sampler.messages). It ends after the listing, or at
once if stdin is closed.
"""

from __future__ import annotations

import contextlib
import os
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, get_args

from cachecd.config import SourceConfig
from cachecd.errors import ConfigError, SourceError
from cachecd.model import ObjectInfo
from cachecd.sampler.child import serve_the_daemon
from cachecd.sampler.messages import Frames, Reason
from cachecd.sampler.usercode import search_first
from cachecd.stores.backend import LeftOut
from cachecd.units.source_units import list_units
from cachecd.units.unit_store import open_unit_store


@dataclass(frozen=True, slots=True)
class Question:
    """Requests the units of `source` (a SourceConfig as JSON), or only the units after the key `after`.
    `path`: directories that imports search first. `left_out`: the objects that were omitted so far."""

    source: dict[str, Any]
    connections: int
    after: str
    left_out: LeftOut
    path: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """The next units. A LeftOut precedes each page, and another follows the last page."""

    units: list[ObjectInfo]


@dataclass(frozen=True, slots=True)
class Ended:
    """There are no more units."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The units cannot be listed, because the source or the configuration is wrong."""

    cause: Literal["source", "configuration"]
    reason: Reason


Reply = Page | LeftOut | Refused | Ended
QUESTIONS = Frames[Question](Question)
REPLIES = Frames[Reply](*get_args(Reply))


def main() -> None:
    requests, replies = serve_the_daemon()
    question = QUESTIONS.read(requests)
    if question is None:
        return
    threading.Thread(target=_end_at_eof, args=(requests,), name="listen", daemon=True).start()
    with contextlib.suppress(BrokenPipeError):
        _reply(replies, _list(question, replies))
    os._exit(0)  # do not wait for threads that the user's code started


def _list(question: Question, replies: BinaryIO) -> Refused | Ended:
    """Sends all pages. Returns Refused if the units cannot be listed."""
    try:
        source = SourceConfig.model_validate(question.source)
        search_first(question.path)
        # An empty page reports that the imports of this process have ended.
        _reply(replies, Page([]))
        left_out = question.left_out
        store = open_unit_store(source, question.connections, left_out=left_out)
        for units in list_units(source, store, question.after):
            _reply(replies, left_out)
            _reply(replies, Page(units))
        _reply(replies, left_out)
    except (BrokenPipeError, MemoryError):
        raise
    except ConfigError as error:
        return Refused("configuration", str(error))
    except SourceError as error:
        return Refused("source", str(error))
    except BaseException as error:  # the user's code may do anything
        traceback.print_exc()
        message = "".join(traceback.format_exception_only(error)).strip()
        return Refused("source", f"its units cannot be listed: {message}")
    return Ended()


def _reply(replies: BinaryIO, reply: Reply) -> None:
    replies.write(REPLIES.pack(reply))
    replies.flush()


def _end_at_eof(requests: BinaryIO) -> None:
    requests.read(1)
    os._exit(0)


if __name__ == "__main__":
    main()
