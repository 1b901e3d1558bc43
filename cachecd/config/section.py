"""The base class of all sections of the configuration, and errors between keys."""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

_FEATURE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


class SectionModel(BaseModel):
    """Frozen; an unknown key is an error; an empty section has the defaults."""

    # Built when it is first needed: a sampler, which is started for each processor, needs few of them.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _empty_is_the_defaults(cls, value: Any) -> Any:
        """YAML reads a section whose keys are all commented out as null."""
        return {} if value is None else value


def conflict(
    at: tuple[str | int, ...], message: str, *, too_small: bool = False
) -> PydanticCustomError:
    """Returns an error between keys, shown at the key `at`, relative to the model that raises it.
    `too_small`: `cache.limit` cannot hold the configuration."""
    kind = "limit_too_small" if too_small else "conflict"
    return PydanticCustomError(kind, "{message}", {"at": at, "message": message})


def check_feature(at: tuple[str, ...], name: object, *own: str) -> None:
    """Refuses a name that no feature may have, or that is one of `own`, which every record has."""
    if not _FEATURE.fullmatch(str(name)) or name in own:
        raise conflict(
            at,
            f"a feature cannot have the name {name!r}: use letters, digits, _, - and . (not "
            f"{' or '.join(own)}, because every record has it already)",
        )
