"""What may stand under `transform`: ready-made steps with their arguments, and module:function."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from cachecd.quantities import shown

_MAX_SIDE = 65535
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


class TransformStep(BaseModel):
    """One step, checked: `name` and the `argument` it takes.

    decode_image: the feature to decode; ``"payload"`` if none was given.
    resize: the sides in pixels, an int for both or (height, width).
    module:function: always None.

    In YAML a step is its name, or a mapping of the name to the argument.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    argument: Any = None

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Of the form in YAML, which is what a schema is for."""
        side = {"type": "integer", "minimum": 1, "maximum": _MAX_SIDE}
        sides = {"type": "array", "items": side, "minItems": 2, "maxItems": 2}
        with_argument = {
            "type": "object",
            "properties": {
                "decode_image": {"type": ["string", "null"]},
                "resize": {"anyOf": [side, sides]},
            },
            "additionalProperties": {"type": "null"},
            "minProperties": 1,
            "maxProperties": 1,
        }
        return {
            "description": "A step's name, or a mapping of the name to its argument.",
            "anyOf": [{"type": "string"}, with_argument],
        }

    @model_validator(mode="before")
    @classmethod
    def _from_yaml(cls, value: Any) -> Any:
        match value:
            case TransformStep():
                return value
            case str():
                name, argument = value, None
            case {"name": str(name), **rest} if not rest.keys() - {"argument"}:
                argument = rest.get("argument")
            case dict() if len(value) == 1 and isinstance(next(iter(value)), str):
                ((name, argument),) = value.items()
            case _:
                raise ValueError(
                    f"found {shown(value)}, expected a step such as decode_image, {{resize: 256}} or "
                    "my_project.prepare:to_tensors"
                )
        return {"name": name, "argument": _argument(name, argument)}


def _listed(value: Any) -> Any:
    """The steps as a list, also where a single one stands alone or none is left."""
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else value


Steps = Annotated[
    tuple[TransformStep, ...],
    BeforeValidator(_listed, json_schema_input_type=str | tuple[TransformStep, ...]),
]


def _argument(name: str, argument: Any) -> Any:
    """The argument in its one form; ValueError if the step takes no such argument."""
    match name, argument:
        case "decode_image", None:
            return "payload"
        case "decode_image", str() if argument:
            return argument
        case "decode_image", _:
            raise ValueError(
                f"found {shown(argument)}, expected decode_image: the name of a feature"
            )
        case "resize", _ if _is_side(argument):
            return argument
        case "resize", [height, width] if _is_side(height) and _is_side(width):
            return (height, width)
        case "resize", _:
            raise ValueError(
                f"found {shown(argument)}, expected resize: a number of pixels, or [height, width]"
            )
        case _, None if _FUNCTION.fullmatch(name):
            return None
        case _ if _FUNCTION.fullmatch(name):
            raise ValueError(
                f"found an argument, {shown(argument)}, expected none: {name} is a function"
            )
    raise ValueError(f"found {name!r}, expected decode_image, resize or module:function")


def _is_side(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MAX_SIDE
