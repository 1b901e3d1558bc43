"""Turns a file and the environment into a Config, or reports one line for each mistake."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from cachecd.config.document import Document, Place, Problem, raise_all, read_document
from cachecd.config.keys import Loc, section_at
from cachecd.config.models import Config
from cachecd.config.overrides import apply_overrides
from cachecd.config.removed import removed
from cachecd.errors import ConfigError, LimitTooSmallError
from cachecd.quantities import shown
from cachecd_client.sockets import default_endpoint

# Replaces texts of pydantic that do not fit after "expected".
_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text (in quotes if it looks like a number)",
    "literal_error": "{expected}",
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt:g}",
    "less_than_equal": "at most {le}",
    "model_type": "a section with one key per line",
    "model_attributes_type": "a section with one key per line",
    "dict_type": "one name per line, each with a section",
    "tuple_type": "a list",
    "string_pattern_mismatch": "a name of at most 64 letters, digits, dashes and underscores",
    "too_short": "at least one entry",
    "finite_number": "a finite number",
}


def load_config(path: Path, environ: Mapping[str, str]) -> Config:
    """Implements `cachecd.config.load`."""
    document = read_document(path, environ)
    _refuse_other_versions(path, document)
    problems = apply_overrides(document, environ)
    _default_the_socket(document, environ)
    try:
        config = Config.model_validate(document.values, context={"folder": path.parent.absolute()})
    except ValidationError as error:
        details = error.errors(include_url=False)
        too_small = not problems and all(d["type"] == "limit_too_small" for d in details)
        unknown = [d["loc"] for d in details if d["type"] == "extra_forbidden"]
        # A misspelled key is not reported a second time, as missing.
        misspelled = {(*loc[:-1], close) for loc in unknown if (close := _close(loc))}
        problems += [
            _problem(document, d)
            for d in details
            if d["type"] != "missing" or d["loc"] not in misspelled
        ]
        raise_all(path, problems, LimitTooSmallError if too_small else ConfigError)
        raise  # not reached: a ValidationError has at least one error
    raise_all(path, problems)
    return config


def place_of(path: Path, environ: Mapping[str, str], loc: Loc) -> str:
    """Returns the place of a key: ``file:line:column``, or the variable that sets it. ConfigError."""
    document = read_document(path, environ)
    apply_overrides(document, environ)
    return document.place(loc).of(path)


def _refuse_other_versions(path: Path, document: Document) -> None:
    """Refuses other versions. Runs before all other checks, because the version decides what the keys
    mean."""
    version = document.values.get("version", 1)
    if version != 1 or isinstance(version, bool):
        message = (
            f"version: found {shown(version)}, but this cachecd reads only version 1: set it to 1"
        )
        raise_all(path, [Problem(document.place(("version",)), message)])


def _default_the_socket(document: Document, environ: Mapping[str, str]) -> None:
    server = document.values.get("server")
    if server is None or (isinstance(server, dict) and "endpoint" not in server):
        document.put(("server", "endpoint"), default_endpoint(environ), Place("XDG_RUNTIME_DIR"))


def _problem(document: Document, detail: ErrorDetails) -> Problem:
    context = detail.get("ctx", {})
    loc: Loc = (*(n for n in detail["loc"] if n != "[key]"), *context.get("at", ()))
    match detail["type"]:
        case "extra_forbidden":
            place, message = document.place(loc, key=True), _unknown(loc)
        case "missing":
            place, message = document.place(loc), f"missing: set it. Its meaning: {_purpose(loc)}"
        case "conflict" | "limit_too_small":
            place, message = document.place(loc), context["message"]
        case "value_error":
            place, message = document.place(loc), str(context["error"])
        case kind:
            expected = _EXPECTED[kind].format(**context) if kind in _EXPECTED else detail["msg"]
            place = document.place(loc, key="[key]" in detail["loc"])
            message = f"found {shown(detail['input'])}, expected {expected}"
    key = ".".join(map(str, loc))
    return Problem(place, f"{key}: {message}" if key else message)


def _unknown(loc: Loc) -> str:
    if gone := removed(loc):
        return gone
    if close := _close(loc):
        return f"unknown key; did you mean {close!r}?"
    section = section_at(loc[:-1])
    return f"unknown key; known: {', '.join(section.model.model_fields if section else [])}"


def _close(loc: Loc) -> str:
    """Returns the known key that resembles an unknown key, or "". Ignores removed keys."""
    section = section_at(loc[:-1])
    known = [*section.model.model_fields] if section and not removed(loc) else []
    return next(iter(get_close_matches(str(loc[-1]), known, 1)), "")


def _purpose(loc: Loc) -> str:
    """The first sentence of the missing key's description."""
    section = section_at(loc[:-1])
    field = section.model.model_fields.get(str(loc[-1])) if section else None
    text = (field.description if field else None) or "required"
    return text.partition(". ")[0].rstrip(".")
