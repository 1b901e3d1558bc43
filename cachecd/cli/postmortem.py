"""Opens the debugger at the line of the user's code that raised."""

from __future__ import annotations

import pdb
import traceback
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

from cachecd.sampler.usercode import is_users_own


def debug_error(error: BaseException) -> None:
    """Opens pdb at the origin of the error: at the innermost line of the user's code in the traceback, or,
    without such a line, where the error was raised."""
    causes = list(_causes(error))
    cause = next(filter(_passed_the_user, reversed(causes)), causes[-1])
    debugger = _AtTheUsersLine()
    debugger.message("".join(traceback.format_exception_only(cause)).strip())
    debugger.reset()
    debugger.interaction(None, cause.__traceback__)


def _causes(error: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = error
    seen: set[int] = set()
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__ or found.__context__


def _passed_the_user(error: BaseException) -> bool:
    return any(is_users_own(f.filename) for f in traceback.extract_tb(error.__traceback__))


class _AtTheUsersLine(pdb.Pdb):
    """A debugger that starts at the user's line; `down` moves to the calls below it."""

    def get_stack(
        self, f: FrameType | None, t: TracebackType | None
    ) -> tuple[list[tuple[FrameType, int]], int]:
        found: tuple[list[tuple[FrameType, int]], int] = super().get_stack(f, t)
        stack, at = found
        own: list[Any] = [
            place
            for place, (frame, _) in enumerate(stack)
            if is_users_own(frame.f_code.co_filename)
        ]
        return stack, own[-1] if own else at
