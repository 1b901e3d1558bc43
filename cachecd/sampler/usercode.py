"""The user's own code: found by its name, and blamed by its line."""

from __future__ import annotations

import importlib
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cachecd.errors import ConfigError

# Where code lies that is not the user's.
_OTHERS = tuple(
    os.path.join(path, "")
    for path in (
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        str(Path(__file__).parents[1]),
    )
)
_INSTALLED = re.compile("/(site|dist)-packages/")  # of another interpreter's, on this one's path


def search_first(folders: Sequence[str]) -> None:
    """Has this process look in these folders, in their order, before it looks anywhere else for what it
    imports from now on. What is imported already stays what it is."""
    # Not by PYTHONPATH: that comes after the working directory, and before what the sampler needs itself
    # to start, so that a `queue.py` in a project would end it.
    sys.path[:] = [*folders, *(place for place in sys.path if place not in folders)]


def imported(name: str, what: str, kind: str) -> Callable[..., Any]:
    """What `module:path` names, which must be callable. It is imported by this process: sampler.path, its
    working directory and PYTHONPATH count. ConfigError says of which `what` it is, and which `kind` of
    thing was expected."""
    module, _, path = name.partition(":")
    found: Any = None
    try:
        found = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:  # importing runs the user's code
        told = "".join(traceback.format_exception_only(error)).strip()
        # Two modules of one name: the file tells which of them it is.
        file = getattr(found, "__file__", None)
        told += f" ({file})" if file else place_of(error)
        raise ConfigError(f"{what} {name}: cannot be imported in {os.getcwd()}: {told}") from error
    if not callable(found):
        raise ConfigError(f"{what} {name}: found {type(found).__name__}, expected a {kind}")
    code: Callable[..., Any] = found
    return code


def told(error: BaseException) -> str:
    """What was raised, and where in the user's code."""
    # Without addresses, equal faults have equal reasons, and `status` can count them.
    text = re.sub(r" at 0x[0-9a-f]+", "", "".join(traceback.format_exception_only(error)))
    return f"{text.strip()}{place_of(error)}"


def place_of(error: BaseException) -> str:
    """The innermost line of the user's own code that the exception passed through, if any."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if is_users_own(f.filename)]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""


def is_users_own(filename: str) -> bool:
    """Whether code of this file is the user's, and not ours, the library's or an installed package's."""
    return not filename.startswith((*_OTHERS, "<")) and not _INSTALLED.search(filename)
