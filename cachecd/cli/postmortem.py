"""Opens the debugger at the line of the user's code that raised an error."""

from __future__ import annotations

import pdb
import traceback
from collections.abc import Iterator
from types import FrameType, TracebackType

from cachecd.sampler.usercode import is_users_own


def debug_error(error: BaseException) -> None:
    """Opens pdb at the innermost line of the user's code in the traceback. If there is no such line, opens
    pdb at the line that raised the error."""
    causes = list(_causes(error))
    cause = next(filter(_has_user_code, reversed(causes)), causes[-1])
    debugger = _UserCodeDebugger()
    debugger.message("".join(traceback.format_exception_only(cause)).strip())
    debugger.reset()
    debugger.interaction(None, cause.__traceback__)


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def _has_user_code(error: BaseException) -> bool:
    return any(is_users_own(f.filename) for f in traceback.extract_tb(error.__traceback__))


class _UserCodeDebugger(pdb.Pdb):
    """A debugger that starts in the user's innermost frame. `down` moves to the frames below."""

    def get_stack(
        self, f: FrameType | None, t: TracebackType | None
    ) -> tuple[list[tuple[FrameType, int]], int]:
        stack, index = super().get_stack(f, t)
        own = [i for i, (frame, _) in enumerate(stack) if is_users_own(frame.f_code.co_filename)]
        return stack, own[-1] if own else index
