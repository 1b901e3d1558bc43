"""Checks of option values."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from cachecd_client.errors import CallerError


def integer(name: str, value: Any, least: int, most: int = 2**63 - 1) -> int:
    """Returns `value` as an int from `least` to `most`. Otherwise CallerError with the name of the
    option."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise CallerError(f"{name}={value!r}, expected a whole number (int)")
    if number < least:
        raise CallerError(f"{name}={value!r}, expected at least {least}")
    if number > most:
        raise CallerError(f"{name}={value!r}, expected at most {most}")
    return number


def flag(name: str, value: Any) -> bool:
    """Returns `value`, which must be a bool, because "no" is true in Python. Otherwise CallerError with
    the name of the option."""
    if not isinstance(value, (bool, np.bool_)):
        raise CallerError(f"{name}={value!r}, expected True or False")
    return bool(value)
