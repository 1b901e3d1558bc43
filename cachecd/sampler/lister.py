"""The lister process: `python -m cachecd.sampler.lister`, which lists the units of one source and ends.

For sources whose units only the user's code, a library that decodes, or a long table can tell: none of
them belongs into the daemon, which stays small and lives for months. Frames (cachecd.sampler.pages) come
in on stdin and go out on stdout. It ends with the listing, and at once when stdin does.
"""

from __future__ import annotations

import contextlib
import os
import threading
import traceback
from typing import BinaryIO

from cachecd.config import SourceConfig
from cachecd.errors import ConfigError, SourceError
from cachecd.sampler import messages, pages
from cachecd.sampler.child import serve_the_daemon
from cachecd.sampler.opening import open_store
from cachecd.sampler.pages import End, List, Page, Refused, Said
from cachecd.sampler.units import list_units
from cachecd.sampler.usercode import search_first


def main() -> None:
    requests, replies = serve_the_daemon()
    body = messages.read_frame(requests)
    if body is None:
        return
    asked = pages.unpack(body)
    assert isinstance(asked, List), f"expected List, got {type(asked).__name__}"
    threading.Thread(target=_end_at_eof, args=(requests,), name="listen", daemon=True).start()
    with contextlib.suppress(BrokenPipeError):
        _say(replies, _list(asked, replies))
    os._exit(0)  # whatever threads the user's code has started


def _list(asked: List, replies: BinaryIO) -> Said:
    """Says all pages; how it ended."""
    try:
        source = SourceConfig.model_validate(asked.source)
        search_first(asked.path)
        _say(
            replies, Page([])
        )  # it has come so far: what takes long from now on is not its imports
        for units in list_units(source, open_store(source, asked.connections), asked.after):
            _say(replies, Page(units))
    except (BrokenPipeError, MemoryError):
        raise
    except ConfigError as error:
        return Refused("configuration", str(error))
    except SourceError as error:
        return Refused("source", str(error))
    except BaseException as error:  # the user's code may do anything
        traceback.print_exc()
        told = "".join(traceback.format_exception_only(error)).strip()
        return Refused("source", f"its units cannot be listed: {told}")
    return End()


def _say(replies: BinaryIO, message: Said) -> None:
    replies.write(pages.pack(message))
    replies.flush()


def _end_at_eof(requests: BinaryIO) -> None:
    requests.read(1)
    os._exit(0)


if __name__ == "__main__":
    main()
