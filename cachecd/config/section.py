"""The base class of all sections of the configuration, and errors between keys."""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

_FEATURE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


class SectionModel(BaseModel):
    """A frozen model. An unknown key is an error. An empty section has the defaults."""

    # Models are built on first use, because a sampler process needs few of them.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _empty_is_the_defaults(cls, value: Any) -> Any:
        """Accepts null, because YAML reads a section whose keys are all commented out as null."""
        return {} if value is None else value


def conflict(
    at: tuple[str | int, ...], message: str, *, too_small: bool = False
) -> PydanticCustomError:
    """Returns an error about several keys. The error is shown at the key `at`, relative to the model that
    raises it. `too_small`: `cache.limit` cannot hold the configuration."""
    kind = "limit_too_small" if too_small else "conflict"
    return PydanticCustomError(kind, "{message}", {"at": at, "message": message})


def check_feature(at: tuple[str, ...], name: object, *own: str) -> None:
    """Refuses a name that is invalid for a feature, or that is one of `own`, which every record has."""
    if not _FEATURE.fullmatch(str(name)) or name in own:
        raise conflict(
            at,
            f"a feature cannot have the name {name!r}: use letters, digits, _, - and . (not "
            f"{' or '.join(own)}, because every record has it already)",
        )
